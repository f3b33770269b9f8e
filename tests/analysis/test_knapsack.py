"""The knapsack behind plans, against trying everything."""

from itertools import product
from random import Random

import pytest

from headgates.analysis.knapsack import Knapsack, Option, split_between, undominated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [0.0, 2.5, 5.0, 8.0])
def test_the_choice_is_the_best_of_all_choices_within_every_budget(seed, budget):
    rng = Random(seed)
    parts = [
        [Option(0.0, 5.0), *(Option(rng.randrange(1, 12) / 4, rng.random()) for _ in range(4))]
        for _ in range(5)
    ]
    all_choices = [[sum(o.cost for o in some), sum(o.loss for o in some)] for some in product(*parts)]
    # costs are quarters and so are the shares of 8 in 4,000: rounding changes nothing
    options, loss = Knapsack(parts, 8.0).at(budget)
    chosen = [part[place] for part, place in zip(parts, options, strict=True)]
    assert sum(option.cost for option in chosen) <= budget
    assert sum(option.loss for option in chosen) == pytest.approx(loss)
    assert loss == pytest.approx(min(loss for cost, loss in all_choices if cost <= budget))


def test_a_budget_below_the_cheapest_options_has_no_choice():
    sack = Knapsack([[Option(2.0, 0.0)], [Option(3.0, 0.0), Option(2.5, 1.0)]], 10.0)
    assert sack.at(4.0) is None
    assert sack.at(-1.0) is None
    assert sack.at(4.5) == ([0, 1], 1.0)


@pytest.mark.parametrize("tables", [1, 2, 3])
def test_parts_in_tables_of_their_own_share_a_budget_as_in_one(tables):
    rng = Random(tables)
    parts = [[Option(rng.randrange(1, 12) / 4, rng.random()) for _ in range(4)] for _ in range(6)]
    for count in range(1, 7 // tables):  # the first parts of each
        groups = [parts[place::tables] for place in range(tables)]
        sacks = [Knapsack(group, 8.0) for group in groups]
        whole = Knapsack([part for group in groups for part in group[:count]], 8.0)
        loss, shares = split_between([sack.losses[count] for sack in sacks], whole.shares_of(6.5))
        if (answer := whole.at(6.5)) is None:
            assert loss == float("inf")
            continue
        assert loss == pytest.approx(answer[1])
        assert sum(shares) == whole.shares_of(6.5)
        picked = [sack.options(own, count) for sack, own in zip(sacks, shares, strict=True)]
        assert [option for own in picked for option in own] == answer[0]


def test_options_that_another_beats_are_left_out():
    options = [Option(3.0, 1.0), Option(1.0, 2.0), Option(2.0, 2.0), Option(3.0, 0.5), Option(4.0, 0.5)]
    assert undominated(options) == [1, 3]
