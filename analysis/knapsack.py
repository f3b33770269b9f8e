"""One option of every part under a budget: the multiple-choice knapsack, by dynamic programming over cost.

    minimise sum_i loss(i, o_i)   over options o_i   such that   sum_i cost(i, o_i) <= budget

One table answers every budget up to the largest, and for the first parts alone. Tables of parts that share a
budget are put together without another one (`split_between`). Costs are rounded up to `BUDGET_STEPS` equal
shares of the largest budget, so no choice is over its budget, and each part may cost up to one share more
than it does. Letters: P parts, O options of a part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BUDGET_STEPS = 4000  # shares of the largest budget


@dataclass(frozen=True)
class Option:
    """What a part may become. cost: in the unit of the budget; loss: what it adds."""

    cost: float
    loss: float


class Knapsack:
    """The best options of the parts for every budget up to `largest`, above 0. Parts may cost nothing."""

    def __init__(self, parts: Sequence[Sequence[Option]], largest: float):
        self.share = largest / BUDGET_STEPS
        best = torch.zeros(BUDGET_STEPS + 1, dtype=torch.float64)
        self.losses = [best]  # of the first n parts, the least with so many shares at most
        self.chosen: list[Tensor] = []  # of each part, the option at so many shares
        self.shares = [
            [math.ceil(max(option.cost, 0.0) / self.share - 1e-9) for option in part] for part in parts
        ]
        for part, shares in zip(parts, self.shares, strict=True):
            with_option = torch.full((len(part), BUDGET_STEPS + 1), math.inf, dtype=torch.float64)
            for row, option, share in zip(with_option, part, shares, strict=True):
                if share <= BUDGET_STEPS:
                    row[share:] = best[: BUDGET_STEPS + 1 - share] + option.loss
            self.chosen.append(with_option.argmin(0))
            best = with_option.min(0).values
            self.losses.append(best)

    def at(self, budget: float) -> tuple[list[int], float] | None:
        """The option of every part, by its place, and the sum of their losses; None where even the cheapest
        options cost more."""
        left = self.shares_of(budget)
        if left < 0 or not math.isfinite(self.losses[-1][left]):
            return None
        return self.options(left, len(self.chosen)), float(self.losses[-1][left])

    def shares_of(self, budget: float) -> int:
        """Below 0 where the budget is."""
        return min(BUDGET_STEPS, math.floor(budget / self.share + 1e-9))

    def options(self, left: int, parts: int) -> list[int]:
        """The options of the first parts with so many shares, by their places."""
        found: list[int] = []
        for chosen, shares in zip(self.chosen[:parts][::-1], self.shares[:parts][::-1], strict=True):
            found.append(int(chosen[left]))
            left -= shares[found[-1]]
        return found[::-1]


def split_between(losses: Sequence[Tensor], left: int) -> tuple[float, list[int]]:
    """The least sum of losses, one of each table by how many shares it gets, and these; all are `left`, at
    least 0. An infinite sum where there is none."""
    *others, rest = losses
    gets = list[Tensor]()  # of a table, by the shares that are left for it and those after it
    for table in reversed(others[1:]):
        rest, places = least_sums(table, rest)
        gets.append(places)
    if not others:
        return float(rest[left]), [left]
    loss, first = (others[0][: left + 1] + rest[: left + 1].flip(0)).min(0)
    shares, left = [int(first)], left - int(first)
    for places in reversed(gets):
        shares.append(int(places[left]))
        left -= shares[-1]
    return float(loss), [*shares, left]


def least_sums(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """For every number of shares the least sum of two tables that have so many together, and how many the
    first has."""
    best, places = torch.full_like(one, math.inf), torch.zeros(len(one), dtype=torch.long)
    for shares, loss in enumerate(one.tolist()):
        found = loss + other[: len(one) - shares]
        better = found < best[shares:]
        best[shares:][better], places[shares:][better] = found[better], shares
    return best, places


def undominated(options: Sequence[Option]) -> list[int]:
    """The places of the options that no other beats in cost and loss, cheapest first; of equal ones the
    first."""
    order = sorted(range(len(options)), key=lambda place: (options[place].cost, options[place].loss))
    kept: list[int] = []
    for place in order:
        if not kept or options[place].loss < options[kept[-1]].loss:
            kept.append(place)
    return kept
