"""Swaps on the exact loss after an order has chosen, for heads that are closed without a refit.

What closing a head alone costs says nothing of heads that back each other up: two look dispensable while one
of them is needed. Here the model runs with the choice, first with each single head the other way round, then
with the swaps that these losses put first (swaps.py), each kept where the loss falls. Which heads are missed
depends on those that are open, so this begins again until no swap helps."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from headgates.analysis.scores.exact_effects import loss_rises
from headgates.analysis.scores.swaps import promising
from headgates.analysis.without_heads import heads_at
from headgates.gates import HeadMap
from headgates.gates.headmap import Head

SWAP_ROUNDS = 5  # at most


def loss_swapped(
    model: nn.Module,
    batches: Iterable[Any],
    closed: HeadMap,
    *,
    by_kind: bool = False,
    **reading: Any,
) -> HeadMap:
    """Return `closed` (True: closed) with heads that changed places, as many closed in all, or with by_kind
    of each kind, as before; never of a higher loss on the batches.

    Other arguments and errors are those of `loss_rises`. The model runs once for each head and round."""
    text = list(batches)

    def rises(*choices: HeadMap) -> list[float]:
        found: list[float] = loss_rises(model, text, choices, **reading).tolist()
        return found

    heads = heads_at(closed)
    (best,) = rises(closed)
    for _ in range(SWAP_ROUNDS):
        alone = dict(zip(heads, rises(*(turned(closed, head) for head in heads)), strict=True))
        before = closed
        for pair in promising(alone, dict(closed), by_kind=by_kind):
            other = turned(closed, *pair)
            (after,) = rises(other)
            if after < best:
                best, closed = after, other
        if closed is before:
            break
    return closed


def turned(closed: HeadMap, *heads: Head) -> HeadMap:
    """The choice with these heads the other way round."""
    rows = {site: row.clone() for site, row in closed.items()}
    for site, head in heads:
        rows[site][head] = ~rows[site][head]
    return HeadMap(rows)
