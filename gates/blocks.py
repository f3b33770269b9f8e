"""Neurons that close together, as processors multiply several at once.

Which neurons make a block is not said by their places but by their values: the lowest `multiple` of a site
are its first block, the next its second.   Letters: H heads or neurons of a site.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

WIDTH = 16  # a feed-forward layer keeps a multiple of it of its neurons


def lowest_in_blocks(
    rows: Sequence[Tensor], count: int, multiples: Sequence[int], *, at_least: int = 0
) -> list[Tensor]:
    """For each site's values (H,) True at those that close, (H,) bool: at most `count` in all, the blocks of
    lowest mean first, equal ones in the order of sites.

    multiples: how many of each site make a block; its lowest block is shorter where H is no multiple.
    at_least: how many stay at each site, so that fewer than `count` may close. Raises ValueError when a value
    is not finite."""
    if not rows:
        return []
    if not all(bool(row.isfinite().all()) for row in rows):
        raise ValueError(
            "scores hold NaN or infinity, so heads cannot be ordered; look for a loss that turned NaN"
        )
    orders = [row.double().sort(stable=True) for row in rows]
    means, sizes, may = [], [], []
    for (values, _), multiple in zip(orders, multiples, strict=True):
        first = len(values) % multiple
        parts = [values[:first].mean()[None]] * bool(first)
        whole = len(values) // multiple
        means.append(torch.cat([*parts, values[first:].view(whole, multiple).mean(1)]))
        sizes.append(torch.tensor([first] * bool(first) + [multiple] * whole, dtype=torch.long))
        may.append(len(values) - sizes[-1].cumsum(0) >= at_least)
    order = torch.cat(means).cpu().argsort(stable=True)
    order = order[torch.cat(may)[order]]
    fits = torch.cat(sizes)[order].cumsum(0) <= count
    closed = torch.zeros(sum(map(len, means)), dtype=torch.bool)
    closed[order[fits]] = True
    found = []
    for (values, places), of_site, size in zip(orders, closed.split([*map(len, means)]), sizes, strict=True):
        row = torch.zeros(len(values), dtype=torch.bool, device=values.device)
        row[places] = of_site.repeat_interleave(size).to(values.device)
        found.append(row)
    return found


def rounded_up(opened: Tensor, values: Tensor, multiple: int) -> Tensor:
    """True at the open neurons of a site and at so many of the next highest that they are a multiple, or all;
    both (H,)."""
    by_value = values.argsort(descending=True, stable=True)
    order = by_value[opened[by_value].byte().argsort(descending=True, stable=True)]  # the open ones first
    row = torch.zeros_like(opened)
    row[order[: -(-int(opened.sum()) // multiple) * multiple]] = True
    return row
