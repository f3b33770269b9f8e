"""The numbers of a comparison: means over seeds, intervals over sentences, ranks, and what each is compared
with."""

import numpy as np
import pytest

from headgates.configs.recipe import Lambda, Units
from headgates.report.compare_groups import Difference, Group, together
from tests.worlds.compared import COUNTS, LINES, compared, made, right, scattered, twice


def test_a_group_is_the_mean_over_its_seeds_in_every_resample():
    lines = [scattered(101, seed=1), scattered(83, seed=2)]
    group = Group(
        [made("importance", 7, right(each), seed=seed) for seed, each in enumerate(lines, start=1)], COUNTS
    )
    assert group.mean == pytest.approx(100 * (101 + 83) / 2 / LINES)
    assert group.range == (pytest.approx(41.5), pytest.approx(50.5))
    slow = []
    for counts in COUNTS:  # the same resample of sentences for both seeds
        drawn = np.repeat(np.arange(LINES), counts.astype(int))
        slow.append(np.mean([100 * np.isin(drawn, each).mean() for each in lines]))
    assert np.mean(group.resampled, axis=0) == pytest.approx(np.array(slow))
    low, high = group.interval  # wider than that of the sentences: seeds count too
    assert low < np.sort(slow)[25] - 0.5 < np.sort(slow)[-26] + 0.5 < high


def test_a_difference_is_paired():
    ours, theirs = right(range(100)), right(range(80))
    groups = [Group(twice([made(*each)]), COUNTS) for each in (("obs", 7, ours), ("random", 7, theirs))]
    difference = groups[0].minus(groups[1])
    slow = [100 * counts[80:100].sum() / LINES for counts in COUNTS]  # lines that one alone has right
    assert difference.value == pytest.approx(10.0)
    assert difference.interval == pytest.approx((np.sort(slow)[25], np.sort(slow)[-26]), abs=0.5)
    assert difference.verdict == "ahead"
    assert difference.p < 0.001


@pytest.mark.parametrize(
    ("value", "p", "p_holm", "verdict"),
    [
        (1.0, 0.04, None, "ahead"),
        (-1.0, 0.04, None, "behind"),
        (1.0, 0.06, None, "tie"),
        (1.0, 0.04, 0.08, "tie"),
    ],
)
def test_a_lead_is_one_where_the_adjusted_p_is_small(value, p, p_holm, verdict):
    assert Difference(value, (0.1, 2.0), p, p_holm).verdict == verdict


def test_pairs_are_adjusted_together_and_one_in_both_orders_is_one_question():
    points = [made(m, 7, right(range(n))) for m, n in (("importance", 103), ("random", 100), ("obs", 50))]
    of_label = {group.label: group for group in compared(points).at(0, Units(7))}
    a, b, c = (of_label[method] for method in ("importance", "random", "obs"))
    found = together([(a, b), (a, c), (b, c), (b, a)])
    p = {frozenset(pair): difference.p for pair, difference in found.items()}
    assert found[b, a].p_holm == pytest.approx(max(p.values())), "the largest of three stays"
    assert found[a, c].p_holm == pytest.approx(min(1, 3 * min(p.values())))
    assert found[b, a].value == -found[a, b].value
    assert together([]) == {}


def test_the_luck_of_seeds_widens_an_interval():
    seeds = [made("obs", 7, right(scattered(n, n)), seed=n) for n in (80, 120)]
    alone = Group([made("obs", 7, right(scattered(100, 100)))], COUNTS).interval
    (group,) = compared(seeds).at(0, Units(7))
    assert group.interval[0] < alone[0] - 5
    assert group.interval[1] > alone[1] + 5


def test_overlap_is_jaccards_over_sites_and_heads():
    ours, theirs = (Group([made(m, 3, right([1]))], COUNTS) for m in ("obs", "random"))
    assert ours.overlap(theirs) is None, "rows that do not say which heads are open"
    ours.first.heads_by_site = {"a": [0, 1], "b": [2]}
    theirs.first.heads_by_site = {"a": [0, 2], "b": [2]}
    assert ours.overlap(theirs) == pytest.approx(2 / 4)


def test_ranks_are_averaged_over_the_numbers_of_heads_and_equal_scores_share_theirs():
    scores = {
        "importance": [150, 90, 30],
        "random": [150, 80, 50],
        "fisher": [120, 90, 40],
        "obs": [170, 90, 20],
    }
    points = [
        made(method, count, right(range(n)), epochs=1)
        for method, row in scores.items()
        for count, n in zip((17, 11, 5), row, strict=True)
    ]
    ranks = compared(points).ranks(1)
    assert list(ranks) == ["obs", "importance", "random", "fisher"], "the best first"
    by_hand = [1 + 2 + 4, 2.5 + 2 + 3, 2.5 + 4 + 1, 4 + 2 + 2]
    assert [3 * rank for rank in ranks.values()] == pytest.approx(by_hand)


@pytest.mark.parametrize("other", [("random", 17, None), ("l0", 9, Lambda(0.1))])
def test_a_method_without_a_point_everywhere_has_no_rank(other):
    choose, heads, budget = other
    points = [made("importance", count, right(range(40))) for count in (17, 5)]
    points.append(made(choose, heads, right(range(60)), budget=budget))
    assert compared(points).ranks(0) == {"importance": 1.0}


def test_the_reference_trained_as_long_though_its_loss_is_the_higher_one():
    points = [made("importance", 5, right(range(40)), epochs=epochs) for epochs in (0, 1)]
    of_both = compared(points, continued=range(195))
    assert [of_both.reference(epochs).label for epochs in (0, 1)] == ["unpruned", "unpruned, trained as long"]
    assert compared(points).reference(1).label == "unpruned"


def test_seeds_make_one_group_and_closings_and_lambdas_do_not():
    points = [made("importance", 5, right(range(40)), seed=seed) for seed in (1, 2, 3)]
    points += [made("importance", 5, right(range(50)), refit="out")]
    points += [
        made("l0", heads, right(range(50)), budget=Lambda(lam), seed=heads)
        for heads, lam in ((5, 0.1), (6, 0.1), (3, 0.5))
    ]
    groups = compared(points).groups
    assert [(group.label, len(group.rows)) for group in groups] == [
        ("importance", 3),
        ("importance, out refitted", 1),
        ("learned gates", 2),
        ("learned gates", 1),
    ]
    assert groups[2].heads == 5.5


def test_loss_is_that_of_the_best_epoch_and_there_where_every_seed_has_one():
    points = [
        made("obs", 5, right([1]), seed=seed, loss=loss) for seed, loss in ((1, 1.25), (2, 1.75), (3, None))
    ]
    assert Group(points[:2], COUNTS).loss == 1.5
    assert Group(points, COUNTS).loss is None
