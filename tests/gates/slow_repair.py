"""A repair the slow way, by whole passes and whole matrices, and a text for the small model."""

import copy

import numpy as np
import torch
from torch import nn

from gates import HeadMap, find_sites

HEADS, WIDTH, D = 3, 7, 21
# as a pass of the small model reaches them
ORDER = ["encoder.0.enc-self", "encoder.1.enc-self", "decoder.0.dec-self", "decoder.0.cross", "decoder.1.dec-self", "decoder.1.cross"]
SOME = {"encoder.1.enc-self": [0], "decoder.0.cross": [1, 2], "decoder.1.dec-self": [2], "decoder.1.cross": [0, 1, 2]}


def closing(model, heads: dict[str, list[int]] = SOME) -> HeadMap:
    return HeadMap({site: torch.tensor([h in heads.get(site.name, []) for h in range(site.heads)]) for site in find_sites(model)})


def forward(model, batch):
    return model(*batch)


def small_text():
    """Five batches of random pairs without padding, of different sizes: (sources, target inputs)."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(11, 7, 5), (13, 3, 9), (7, 6, 6), (5, 2, 3), (2, 8, 7)]
    return [(torch.randint(4, 23, (b, s), generator=generator), torch.randint(4, 19, (b, t), generator=generator)) for b, s, t in sizes]


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
    rows = [torch.ones(x.shape[:2], dtype=torch.bool) for x in inputs] if where is None else [where(name, batch) for batch in batches]
    flat = [torch.cat([x[mask] for x, mask in zip(each, rows, strict=True)]).numpy() for each in (inputs, outputs)]
    return flat[0], flat[1]


def slowly_repaired(model, heads: dict[str, list[int]], batches, ridge: float, where=None) -> nn.Module:
    """What gates/repair.py says, with whole matrices: (X^T X + r I)^-1 (X^T Y + r old), site by site, each by whole passes."""
    dense, model = model, copy.deepcopy(model)
    first = next(i for i, name in enumerate(ORDER) if heads.get(name))
    for name in ORDER[first:]:
        out = module_at(model, name).out_proj
        kept = np.array([h not in heads.get(name, []) for h in range(HEADS) for _ in range(WIDTH)])
        z, _ = laid_out(model, name, batches, where)
        _, y = laid_out(dense, name, batches, where)
        x = np.concatenate([z[:, kept], np.ones((len(z), 1))], axis=1)
        old = np.concatenate([out.weight.detach().numpy()[:, kept], out.bias.detach().numpy()[:, None]], axis=1).T
        r = ridge * np.mean((x**2).sum(0)) if kept.any() else 0.0
        new = np.linalg.solve(x.T @ x + r * np.eye(x.shape[1]), x.T @ y + r * old) if r else np.linalg.lstsq(x, y, rcond=None)[0]
        with torch.no_grad():
            out.weight.zero_()
            out.weight[:, torch.tensor(kept)] = torch.tensor(new[:-1].T)
            out.bias.copy_(torch.tensor(new[-1]))
    return model


def equal_weights(model, expected, tolerance=1e-7):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
