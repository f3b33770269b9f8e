"""One option of every part under a budget: the multiple-choice knapsack, by dynamic programming over cost.

    minimise sum_i loss(i, o_i)   over options o_i   such that   sum_i cost(i, o_i) <= budget

One table answers every budget up to the largest. Costs are rounded up to `BUDGET_STEPS` equal shares of that,
so no choice is over its budget, and each part may cost up to one share more than it does. Letters: P parts, O
options of a part.
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
        # least loss of the parts so far with so many shares
        best = torch.zeros(BUDGET_STEPS + 1, dtype=torch.float64)
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
        self.losses = best

    def at(self, budget: float) -> tuple[list[int], float] | None:
        """The option of every part, by its place, and the sum of their losses; None where even the cheapest
        options cost more."""
        left = min(BUDGET_STEPS, math.floor(budget / self.share + 1e-9))
        if left < 0 or not math.isfinite(self.losses[left]):
            return None
        loss, options = float(self.losses[left]), []
        for chosen, shares in zip(reversed(self.chosen), reversed(self.shares), strict=True):
            options.append(int(chosen[left]))
            left -= shares[options[-1]]
        return options[::-1], loss


def undominated(options: Sequence[Option]) -> list[int]:
    """The places of the options that no other beats in cost and loss, cheapest first; of equal ones the
    first."""
    order = sorted(range(len(options)), key=lambda place: (options[place].cost, options[place].loss))
    kept: list[int] = []
    for place in order:
        if not kept or options[place].loss < options[kept[-1]].loss:
            kept.append(place)
    return kept
