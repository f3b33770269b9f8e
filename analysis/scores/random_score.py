"""A random score of heads: one draw of a seed, what every other score must beat."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from headgates.gates import HeadMap, find_sites


def random_score(
    model: nn.Module, batches: Iterable[Any] = (), *, seed: int, kinds: Iterable[str] | None = None
) -> HeadMap:
    """Return a number drawn uniformly from [0, 1) for every head of the kinds (of attention unless named). A
    seed always gives the same numbers; the batches are not read."""
    del batches
    generator = torch.Generator().manual_seed(seed)
    return HeadMap(
        {
            site: torch.rand(site.heads, generator=generator, dtype=torch.float64)
            for site in find_sites(model, kinds)
        }
    )
