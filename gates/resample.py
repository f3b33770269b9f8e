"""Resample ablation: a closed head's output is replaced by its output at a random other position of the
text.

So what the head adds on average, and its spread, stay; only what it knew about this position is gone (Chan et
al. 2022, causal scrubbing). Unlike zeros or means it leaves no weights that a model could be saved with.
Letters: B sentences, L positions, H heads, K head width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .called import called
from .exchange import exchanged
from .headmap import HeadMap, HeadSite
from .outputs import closing_outputs, inputs_of
from .reconstruct import NO_TEXT
from .site_walk import Forward, QueryPositions

POOL = 2048  # positions whose outputs are kept at each site


@contextmanager
def resampled(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    positions: QueryPositions | None = None,
    seed: int = 1,
) -> Iterator[None]:
    """Within the context each closed head's output, at every position, is its own at another position of the
    text, sampled for each head.

    The same seed, text and order of batches give the same outputs. Arguments and errors are those of
    `gates.reconstruct.reconstruct`."""
    outputs = closing_outputs(model, closed)
    generator = torch.Generator().manual_seed(seed)
    keys: dict[HeadSite, Tensor] = {}
    pools: dict[HeadSite, Tensor] = {}  # at most POOL positions of the whole text, all equally likely
    for site, rows in inputs_of(outputs, model, batches, forward, positions):
        new = torch.rand(len(rows), generator=generator, dtype=torch.float64)
        # the positions with the smallest random keys are a uniform sample, whatever the number of batches
        key = torch.cat([keys[site], new]) if site in keys else new
        pool = torch.cat([pools[site], rows]) if site in pools else rows
        best = key.argsort()[:POOL]
        keys[site], pools[site] = key[best], pool[best.to(pool.device)]
    for site in outputs:
        if not len(pools.get(site, ())):
            raise ValueError(f"{NO_TEXT}; or the output projection of {site.name} is never called")
    heads = {site: (~output.keep).nonzero().flatten() for site, output in outputs.items()}

    def elsewhere(site: HeadSite, z: Tensor) -> Tensor:
        pool = pools[site].unflatten(1, (site.heads, -1))  # (positions, H, K)
        closed = heads[site].to(z.device)
        sampled = torch.randint(len(pool), (*z.shape[:-2], len(closed)), generator=generator).to(z.device)
        own = z.clone()
        own[..., closed, :] = pool[sampled, closed].to(z)
        return own

    with called(model), exchanged({site: output.module for site, output in outputs.items()}, elsewhere):
        yield
