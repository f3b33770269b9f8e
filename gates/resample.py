"""Resample ablation: a closed head says what it said somewhere else, at a position of the text drawn at
random.

So what the head adds on average, and its spread, stay; only what it knew about this position is gone (Chan et
al. 2022, causal scrubbing). Unlike zeros or means it leaves no weights that a model could be saved with.
Letters: B sentences, L positions, H heads, K head width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .headmap import HeadMap, HeadSite
from .outputs import outputs_of
from .reconstruct import NO_TEXT, see_inputs
from .rules import rule_of
from .site_walk import Forward, Positions, rows_of

POOL = 2048  # positions whose outputs are kept at each site


@contextmanager
def resampled(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    positions: Positions | None = None,
    seed: int = 1,
) -> Iterator[None]:
    """Within the context each closed head's output, at every position, is its own at another position of the
    text, drawn for each head.

    The same seed, text and order of batches give the same outputs. Arguments and errors are those of
    `gates.reconstruct.reconstruct`."""
    outputs = {site: output for site, output in outputs_of(model, closed).items() if not output.keep.all()}
    generator = torch.Generator().manual_seed(seed)
    pools = draw_pools(
        model,
        batches,
        forward,
        {site: output.module for site, output in outputs.items()},
        positions,
        generator,
    )
    handles = []
    for site, output in outputs.items():
        heads = (~output.keep).nonzero().flatten()
        width = pools[site].shape[1] // site.heads
        pool = pools[site].unflatten(1, (site.heads, width))  # (positions, H, K)

        def exchange(
            _: nn.Module, inputs: tuple[Tensor, ...], heads: Tensor = heads, pool: Tensor = pool
        ) -> tuple[Tensor, ...]:
            z, *others = inputs
            drawn = torch.randint(len(pool), (*z.shape[:-1], len(heads)), generator=generator).to(z.device)
            own = z.unflatten(-1, pool.shape[1:]).clone()  # (B, L, H, K)
            own[..., heads.to(z.device), :] = pool[drawn, heads.to(z.device)].to(z)
            return own.flatten(-2), *others

        handles.append(output.out.register_forward_pre_hook(exchange))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def draw_pools(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward,
    sites: "dict[HeadSite, nn.Module]",
    positions: Positions | None,
    generator: torch.Generator,
) -> dict[HeadSite, Tensor]:
    """For each site the outputs of its heads (at most POOL, H * K) at positions drawn from the whole text,
    all equally likely."""
    pools: dict[HeadSite, Tensor] = {}
    keys: dict[HeadSite, Tensor] = {}

    def take(site: HeadSite, batch: Any, z: Tensor) -> None:
        rows = rows_of(
            z.detach(), rule_of(sites[site]), None if positions is None else positions(model, site, batch)
        )
        new = torch.rand(len(rows), generator=generator, dtype=torch.float64)
        # the positions with the smallest random keys are a uniform sample, whatever the number of batches
        key = torch.cat([keys[site], new]) if site in keys else new
        pool = torch.cat([pools[site], rows]) if site in pools else rows
        best = key.argsort()[:POOL]
        keys[site], pools[site] = key[best], pool[best.to(pool.device)]

    if sites:
        for batch in batches:
            see_inputs(model, batch, forward, sites, take)
    for site, module in sites.items():
        if not len(pools.get(site, ())):
            name = type(module).__name__
            raise ValueError(
                f"{NO_TEXT}; or the output projection {rule_of(module).out} of {name} is never called"
            )
    return pools
