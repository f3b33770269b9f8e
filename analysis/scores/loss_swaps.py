"""Swaps on the exact loss after an order has chosen, for heads that are closed without a refit.

What closing a head alone costs says nothing of heads that back each other up: two look dispensable while one
of them is needed. Here the model runs with the choice, first with each single head the other way round, then
with the swaps that these losses put first (swaps.py), each kept where the loss falls. Which heads are missed
depends on those that are open, so this begins again until no swap helps."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from headgates.analysis.scores.exact_effects import loss_rises
from headgates.analysis.scores.swaps import improved
from headgates.gates import HeadMap

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
    return improved(
        closed,
        lambda *choices: loss_rises(model, text, choices, **reading).tolist(),
        by_kind=by_kind,
        rounds=SWAP_ROUNDS,
    )
