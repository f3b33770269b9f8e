"""A reconstruction the slow way, by whole passes and whole matrices, and a text for the small model."""

import copy
import warnings

import numpy as np
import torch
from torch import nn

from headgates.gates import HeadMap, Refit, find_sites, reconstruct
from headgates.models.sublayers import sublayers

HEADS, WIDTH, D = 3, 7, 21
# as a pass of the small model reaches them
ORDER = [
    "encoder.0.enc-self",
    "encoder.1.enc-self",
    "decoder.0.dec-self",
    "decoder.0.cross",
    "decoder.1.dec-self",
    "decoder.1.cross",
]
SOME = {
    "encoder.1.enc-self": [0],
    "decoder.0.cross": [1, 2],
    "decoder.1.dec-self": [2],
    "decoder.1.cross": [0, 1, 2],
}


def closing(model, heads: dict[str, list[int]] = SOME) -> HeadMap:
    closed = {site: [h in heads.get(site.name, []) for h in range(site.heads)] for site in find_sites(model)}
    return HeadMap({site: torch.tensor(row, dtype=torch.bool) for site, row in closed.items()})


def forward(model, batch):
    return model(*batch)


def small_text():
    """Five batches of random pairs without padding, of different sizes: (sources, target inputs)."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(11, 7, 5), (13, 3, 9), (7, 6, 6), (5, 2, 3), (2, 8, 7)]
    return [
        (torch.randint(4, 23, (b, s), generator=generator), torch.randint(4, 19, (b, t), generator=generator))
        for b, s, t in sizes
    ]


def module_at(model, name: str) -> nn.Module:
    return next(module for site, module in find_sites(model).items() if site.name == name)


def laid_out(model, name: str, batches, where=None) -> tuple[np.ndarray, np.ndarray]:
    """All inputs and outputs of a site's W_O, one row a position, by whole forward passes."""
    inputs, outputs = [], []

    def keep(_, x, y):
        inputs.append(x[0])
        outputs.append(y)

    handle = module_at(model, name).out_proj.register_forward_hook(keep)
    with torch.no_grad():
        for batch in batches:
            model(*batch)
    handle.remove()
    rows = (
        [torch.ones(x.shape[:2], dtype=torch.bool) for x in inputs]
        if where is None
        else [where(name, batch) for batch in batches]
    )
    flat = [
        torch.cat([x[mask] for x, mask in zip(each, rows, strict=True)]).numpy() for each in (inputs, outputs)
    ]
    return flat[0], flat[1]


def slowly_reconstructed(model, heads: dict[str, list[int]], batches, ridge: float, where=None) -> nn.Module:
    """What gates/reconstruct.py says, with whole matrices, site by site, each by whole passes."""
    dense, model = model, copy.deepcopy(model)
    first = next(i for i, name in enumerate(ORDER) if heads.get(name))
    for name in ORDER[first:]:
        z, _ = laid_out(model, name, batches, where)
        _, y = laid_out(dense, name, batches, where)
        refit(module_at(model, name).out_proj, kept_columns(heads.get(name, [])), z, y, ridge)
    return model


def kept_columns(closed: list[int]) -> np.ndarray:
    return np.array([h not in closed for h in range(HEADS) for _ in range(WIDTH)])


def refit(out: nn.Linear, kept: np.ndarray, z: np.ndarray, y: np.ndarray, ridge: float) -> None:
    """(X^T X + r I)^-1 (X^T Y + r old), in place."""
    x = np.concatenate([z[:, kept], np.ones((len(z), 1))], axis=1)
    old = np.concatenate([out.weight.detach().numpy()[:, kept], out.bias.detach().numpy()[:, None]], axis=1).T
    r = ridge * np.mean((x**2).sum(0)) if kept.any() else 0.0
    new = (
        np.linalg.solve(x.T @ x + r * np.eye(x.shape[1]), x.T @ y + r * old)
        if r
        else np.linalg.lstsq(x, y, rcond=None)[0]
    )
    with torch.no_grad():
        out.weight.zero_()
        out.weight[:, torch.tensor(kept)] = torch.tensor(new[:-1].T)
        out.bias.copy_(torch.tensor(new[-1]))


# ---------------------------------------------------------------- the residual stream


def streamed(model, closed, text, **options) -> list[Refit]:
    """The reconstruction that the product makes towards the stream, whose warning of few positions is no news
    here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reconstruct(model, closed, text, forward, sublayers=sublayers, **options)


def sublayers_by_hand(model) -> dict[str, nn.Linear]:
    """name -> the last linear layer of each sub-layer that has one, as a pass reaches them."""
    found = {}
    for i, layer in enumerate(model.encoder.layers):
        found[f"encoder.{i}.enc-self"], found[f"encoder.{i}.ffn"] = (
            layer.self_attention.out_proj,
            layer.feed_forward.outer,
        )
    for i, layer in enumerate(model.decoder.layers):
        if hasattr(layer.self_attention, "out_proj"):
            found[f"decoder.{i}.dec-self"] = layer.self_attention.out_proj
        found[f"decoder.{i}.cross"], found[f"decoder.{i}.ffn"] = (
            layer.cross_attention.out_proj,
            layer.feed_forward.outer,
        )
    return found


@torch.no_grad()
def streams(model, batches, name: str, where=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One sub-layer's inputs of its last linear layer, the stream before it and that after it (before any
    norm), one row a position.

    By the equations of the layers, sub-layer after sub-layer."""
    wanted, rows = sublayers_by_hand(model)[name], ([], [], [])

    def passed(batch) -> None:
        def step(x, residual, f):
            seen = []
            handle = wanted.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
            y = f(residual.norm(x) if residual.pre else x)
            handle.remove()
            if seen:
                mask = torch.ones(x.shape[:2], dtype=torch.bool) if where is None else where(name, batch)
                for each, tensor in zip(rows, (seen[0], x, x + y), strict=True):
                    each.append(tensor[mask].numpy())
            return x + y if residual.pre else residual.norm(x + y)

        def attend(attention, memory, bias):
            return lambda h: attention(h, *attention.keys_values(h if memory is None else memory), bias)

        source, target_in = batch
        padding = torch.zeros(source.shape).masked_fill(source == 0, -torch.inf)[:, None, None]
        causal = torch.full((target_in.shape[1],) * 2, -torch.inf).triu(1)
        x = model.embed(source, "source")
        for layer in model.encoder.layers:
            x = step(x, layer.self_residual, attend(layer.self_attention, None, padding))
            x = step(x, layer.feed_residual, layer.feed_forward)
        memory, x = model.encoder.norm(x), model.embed(target_in, "target")
        for layer in model.decoder.layers:
            x = step(x, layer.self_residual, attend(layer.self_attention, None, causal))
            x = step(x, layer.cross_residual, attend(layer.cross_attention, memory, padding))
            x = step(x, layer.feed_residual, layer.feed_forward)

    for batch in batches:
        passed(batch)
    before, after = np.concatenate(rows[1]), np.concatenate(rows[2])
    return np.concatenate(rows[0]), before, after


def slowly_streamed(model, heads: dict[str, list[int]], batches, ridge: float, where=None) -> nn.Module:
    """The reconstruction that aims at the dense model's residual stream, sub-layer by sub-layer."""
    dense, model = model, copy.deepcopy(model)
    outs = sublayers_by_hand(model)
    first = next(i for i, name in enumerate(outs) if heads.get(name))
    for name in list(outs)[first:]:
        z, before, _ = streams(model, batches, name, where)
        _, _, aim = streams(dense, batches, name, where)
        kept = np.ones(z.shape[1], dtype=bool) if name.endswith("ffn") else kept_columns(heads.get(name, []))
        refit(outs[name], kept, z, aim - before, ridge)
    return model


def equal_weights(model, expected, tolerance=1e-7):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
