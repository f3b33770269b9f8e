"""Which heads back each other up: what closing two heads adds to the loss beyond what each adds alone.

    I_ij = D_ij - D_i - D_j,   D_S = E_x[L(x; xi_S = 0) - L(x)], in nats a sentence

Above 0 each does some of the other's work while the other is closed: they back each other up. Below 0 they
share what they cost, as where one reads what the other writes. Every pair costs a pass over the text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import nn

from headgates.analysis.batches import Loss, batch_loss
from headgates.analysis.scores.exact_effects import loss_rises
from headgates.gates import HeadMap, HeadSite
from headgates.gates.gram import Ranks
from headgates.gates.headmap import Head


@dataclass(frozen=True)
class Interaction:
    """Two heads, and what closing both adds to the loss and does beyond the sum of each alone."""

    first: Head
    second: Head
    both: float
    interaction: float


def interactions(
    model: nn.Module,
    batches: Iterable[Any],
    heads: Sequence[Head],
    alone: HeadMap,
    *,
    loss: Loss = batch_loss,
    ranks: Ranks | None = None,
) -> list[Interaction]:
    """Return every pair of the heads, the strongest first.

    alone: D of each head on the same batches (`exact_effects`). Other arguments and errors are those of
    `loss_rises`."""
    pairs = list(combinations(heads, 2))
    rises = loss_rises(model, batches, [closing(pair) for pair in pairs], loss=loss, ranks=ranks)
    found = []
    for (first, second), both in zip(pairs, rises.tolist(), strict=True):
        singly = sum(float(alone[site][head]) for site, head in (first, second))
        found.append(Interaction(first, second, both, both - singly))
    return sorted(found, key=lambda each: -abs(each.interaction))


def closing(heads: Iterable[Head]) -> HeadMap:
    """True for these heads, of their sites."""
    rows: dict[HeadSite, torch.Tensor] = {}
    for site, head in heads:
        rows.setdefault(site, torch.zeros(site.heads, dtype=torch.bool))[head] = True
    return HeadMap(rows)
