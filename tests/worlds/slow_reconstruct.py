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


# some neurons of three feed-forward layers, and all of one
NEURONS = {
    "encoder.0.enc-ffn": [0, 3, 12],
    "encoder.1.enc-ffn": list(range(13)),
    "decoder.0.cross": [1],
    "decoder.0.dec-ffn": [5],
    "decoder.1.dec-ffn": [1, 2, 4, 8],
}


def closing(model, heads: dict[str, list[int]] = SOME) -> HeadMap:
    kinds = "all" if any(name.endswith("ffn") for name in heads) else "heads"
    sites = find_sites(model, kinds)
    closed = {site: [h in heads.get(site.name, []) for h in range(site.heads)] for site in sites}
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


PARTS = {
    "encoder": {"enc-self": "self_attention.out_proj", "enc-ffn": "feed_forward.outer"},
    "decoder": {
        "dec-self": "self_attention.out_proj",
        "cross": "cross_attention.out_proj",
        "dec-ffn": "feed_forward.outer",
    },
}


def sublayers_by_hand(model) -> dict[str, nn.Linear]:
    """name -> the last linear layer of each sub-layer that has one, as a pass reaches them."""
    inside = dict(model.named_modules())
    paths = {
        f"{stack}.{i}.{kind}": f"{stack}.layers.{i}.{path}"
        for stack, parts in PARTS.items()
        for i in range(len(getattr(model, stack).layers))
        for kind, path in parts.items()
    }
    return {name: inside[path] for name, path in paths.items() if path in inside}


@torch.no_grad()
def streams(model, batches, name: str, where=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One sub-layer's inputs of its last linear layer, the stream before it and that after it (before any
    norm), one row a position, by whole passes."""
    out, rows = sublayers_by_hand(model)[name], ([], [], [])
    path = next(path for path, module in model.named_modules() if module is out)
    layer, part, _ = path.rsplit(".", 2)
    residual = model.get_submodule(f"{layer}.{part.split('_')[0]}_residual")
    for batch in batches:
        seen = []
        handles = [
            residual.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0])),
            out.register_forward_hook(lambda _, z, y, seen=seen: seen.extend((z[0], y))),
        ]
        model(*batch)
        for handle in handles:
            handle.remove()
        x, z, y = seen
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if where is None else where(name, batch)
        for each, tensor in zip(rows, (z, x, x + y), strict=True):
            each.append(tensor[mask].numpy())
    z, before, after = map(np.concatenate, rows)
    return z, before, after


def laid_out(model, name: str, batches) -> tuple[np.ndarray, np.ndarray]:
    """All inputs and outputs of a site's W_O, one row a position."""
    z, before, after = streams(model, batches, name)
    return z, after - before


def slowly_streamed(
    model,
    heads: dict[str, list[int]],
    batches,
    ridge: float,
    where=None,
    *,
    stream: bool = True,
    values=None,
) -> nn.Module:
    """The reconstruction site by site, each by whole passes: of every sub-layer towards the unpruned model's
    residual stream, or of every attention (and, where neurons close, feed-forward layer) towards its own
    output. values: refits an attention that keeps heads, given the model, its name, these heads and what it
    should give."""
    unpruned, model = model, copy.deepcopy(model)
    every = stream or any(name.endswith("ffn") for name in heads)
    outs = {name: out for name, out in sublayers_by_hand(model).items() if every or name in ORDER}
    first = next(i for i, name in enumerate(outs) if heads.get(name))
    for name in list(outs)[first:]:
        z, now, _ = streams(model, batches, name, where)
        _, then, aim = streams(unpruned, batches, name, where)
        aim = aim - (now if stream else then)
        stays = [h for h in range(HEADS) if h not in heads.get(name, [])]
        if values is not None and stays and not name.endswith("ffn"):
            values(model, name, stays, aim)
            continue
        kept = kept_columns(heads.get(name, []), *((z.shape[1], 1) if name.endswith("ffn") else ()))
        refit(outs[name], kept, z, aim, ridge)
    return model


def kept_columns(closed: list[int], heads: int = HEADS, width: int = WIDTH) -> np.ndarray:
    return np.array([h not in closed for h in range(heads) for _ in range(width)])


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


def streamed(model, closed, text, **options) -> list[Refit]:
    """The reconstruction that the product makes towards the stream, whose warning of few positions is no news
    here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reconstruct(model, closed, text, forward, sublayers=sublayers, **options)


def equal_weights(model, expected, tolerance=1e-7):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
