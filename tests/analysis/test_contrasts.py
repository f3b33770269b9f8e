"""Effects on contrasts: against closing by hand, and where the truth is planted."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats

from headgates.analysis.batches import sites_of
from headgates.analysis.contrasts import (
    alike_pairs,
    mean_changes,
    pair_values,
    random_sets,
    ranked_effect,
    set_effects,
)
from headgates.analysis.without_heads import all_heads, closing
from headgates.gates import HeadMap, HeadSite, zero_heads
from headgates.gates.sites import BANK
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

PAIRS = random_pairs()[:7]


def lead(model, batch):
    """Of each pair the logit of token 5 minus that of 7, at the first step."""
    logits = model(batch.source, batch.target_in)[:, 0]
    return logits[:, 5] - logits[:, 7]


@torch.no_grad()
def test_a_pairs_value_without_heads_is_that_with_their_columns_at_zero():
    model = random_model().double()
    heads = all_heads(model)
    sets = [closing(some) for some in ([], [heads[0]], [heads[1], heads[-1]], heads)]
    found = pair_values(model, in_batches(PAIRS, 3), sets, lead)
    for row, closed in zip(found, sets, strict=True):
        zeroed = copy.deepcopy(model)
        zero_heads(zeroed, closed)
        torch.testing.assert_close(row, torch.cat([lead(zeroed, batch) for batch in in_batches(PAIRS, 1)]))
    assert (found[0] - found[1]).abs().max() > 1e-2
    assert not hasattr(model, BANK)


def most(level, count):
    """Of so many tests at a level within 1.5 times of it, three standard errors more than are expected."""
    expected = 1.5 * level * count
    return expected + 3 * (expected * (1 - 1.5 * level)) ** 0.5


NULLS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "heavy": lambda rng, size: rng.standard_t(3, size=size),
    "exponential": lambda rng, size: 1 - rng.exponential(size=size),
    "lognormal": lambda rng, size: rng.lognormal(size=size) - np.exp(0.5),
}


@pytest.mark.parametrize("pairs", [20, 60])
@pytest.mark.parametrize("null", NULLS)
def test_no_effect_is_called_one_at_most_as_often_as_is_said_by_p_and_by_interval(null, pairs):
    changes = torch.from_numpy(NULLS[null](np.random.default_rng(pairs), (1000, pairs)))
    rows = mean_changes(changes, 600)
    called = (
        sum(row["p_value"] < 0.05 for row in rows),
        sum(row["low"] > 0 or row["high"] < 0 for row in rows),
    )
    assert max(called) <= most(0.05, 1000)
    if null == "normal":
        assert min(called) >= 0.02 * 1000, "and not much seldomer"


@pytest.mark.parametrize(
    "family",
    [{"lognormal": 48}, {"lognormal": 24, "normal": 24}, {"lognormal": 12, "heavy": 36}],
    ids=str,
)
def test_of_heads_without_effect_one_is_named_by_few_pairs_no_oftener_than_at_the_level(family):
    rng, named, low, skewed = np.random.default_rng(3), 0, 0, family["lognormal"]
    for _ in range(40):
        changes = np.concatenate([NULLS[null](rng, (heads, 20)) for null, heads in family.items()])
        rows = mean_changes(torch.from_numpy(changes), 1000)
        named += any(row["p_value_holm"] < 0.05 for row in rows)
        low += sum(row["p_value"] < 0.01 for row in rows[:skewed])
    assert named <= most(0.05, 40)
    assert low <= most(0.01, 40 * skewed), "where others hide a long tail, it looks short"


def of_words(words, ways):
    """The differences of pairs that have a word of their own, in one way or the other."""
    sides = [(frozenset({f"{word}"}), frozenset({f"{word}s"})) for word in words]
    return [side if way > 0 else side[::-1] for side, way in zip(sides, ways, strict=True)]


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("pairs", [20, 60])
def test_the_luck_of_words_that_pairs_share_is_not_called_an_effect(pairs, both_ways):
    rng, counts = np.random.default_rng(pairs), {True: 0, False: 0}
    for _ in range(20):
        words = rng.integers(8 if pairs == 20 else 15, size=pairs)
        ways = rng.choice((-1, 1), size=pairs) if both_ways else np.ones(pairs)
        luck = ways * rng.normal(size=(50, 15))[:, words]
        changes = torch.from_numpy(luck + rng.normal(size=(50, pairs)))
        for shared in counts:
            units = alike_pairs(of_words(words, ways)) if shared else None
            counts[shared] += sum(row["p_value"] < 0.05 for row in mean_changes(changes, 400, units))
    assert counts[True] <= most(0.05, 1000)
    assert both_ways or counts[False] > most(0.05, 1000), "with each pair for itself it is"


def test_pairs_the_same_way_round_share_a_unit_and_opposite_ones_do_not():
    given = of_words(["cat", "cat", "dog", "cat", "cow", "cat"], [1, -1, 1, 1, 1, 1])
    assert alike_pairs(given) == [0, 1, 2, 3, 4, 3]  # one cat is set against the one that is turned
    assert alike_pairs(of_words(["not"] * 3, [1, 1, 1])) == [0, 1, 2]  # what the contrast is
    assert alike_pairs(of_words(["not"] * 3, [1, 1, -1])) == [0, 1, 2]
    none = frozenset[str]()
    assert alike_pairs([(none, none), *given[:2], (none, none)]) == [0, 1, 2, 3]


def test_units_of_two_equal_pairs_say_what_each_pair_says_alone():
    changes = torch.randn(5, 23, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.4
    alone = mean_changes(changes, 1000)
    twice = mean_changes(changes.repeat(1, 2), 1000, [*range(23), *range(23)])
    for one, two in zip(alone, twice, strict=True):
        assert two == pytest.approx(one)
    spread = np.std(changes.numpy(), axis=1, ddof=1) / 23**0.5
    for row, mean, each in zip(alone, changes.mean(1).tolist(), spread, strict=True):
        assert row["mean"] == pytest.approx(mean)
        student = stats.t.interval(0.95, 22, loc=mean, scale=each)
        assert row["low"] <= student[0] + 1e-9
        assert row["high"] >= student[1] - 1e-9


def test_planted_effects_are_found_beside_heads_that_do_nothing():
    noise = torch.randn(40, 41, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    planted = mean_changes(torch.cat([noise[:9] + 1.0, noise[9:], torch.zeros(1, 41)]), 10_000)
    assert all(row["p_value_holm"] < 0.01 and row["low"] > 0 for row in planted[:9])
    assert planted[0]["mean"] == pytest.approx(float(noise[0].mean()) + 1)
    assert planted[-1] == {"mean": 0, "low": 0, "high": 0, "p_value": 1, "p_value_holm": 1}


def test_random_sets_have_as_many_heads_at_each_site():
    first, second = HeadSite.at("enc-self", 0, 7), HeadSite.at("cross", 0, 5)
    chosen = HeadMap({first: torch.arange(7) < 3, second: torch.arange(5) < 0})
    sets = random_sets(chosen, 211, seed=3)
    often, never = (torch.stack([each[site] for each in sets]) for site in (first, second))
    assert (often.sum(1) == 3).all()
    assert not never.any()
    assert ((often.double().mean(0) - 3 / 7).abs() < 0.15).all()
    assert random_sets(chosen, 5, seed=3) == sets[:5]


def test_the_heads_that_a_value_is_made_of_are_necessary_and_enough_and_others_are_neither():
    model, batches = random_model(), in_batches(PAIRS, 3)
    site = next(iter(sites_of(model, None)))
    others = closing(all_heads(model)[3:7])

    def planted(model, batch):
        """Two heads of the first site are all that counts."""
        a, b, _ = getattr(model, BANK).values()[site].tolist()
        return torch.full((len(batch),), 2.0 * a * b)

    without, alone = set_effects(model, batches, closing([(site, 0), (site, 1)]), planted, sets=50)
    assert (without.value, alone.value) == (0.0, 2.0)
    assert (without.random, alone.random) == (0.0, 0.0)  # two of the three; most miss one
    without, alone = set_effects(model, batches, others, planted, sets=50)
    assert (without.value, alone.value) == (2.0, 0.0)
    assert (without.percentile, alone.percentile) == (0.5, 0.5)  # all random sets do as little
    assert (without.p_value, alone.p_value) == (1.0, 1.0)


def test_a_percentile_counts_the_random_sets_that_do_less_and_half_of_the_ties():
    means = torch.tensor([3.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    more, less = ranked_effect(means, least=False), ranked_effect(means, least=True)
    assert (more.percentile, more.p_value) == (2.5 / 4, 3 / 5)
    assert (less.percentile, less.p_value) == (1.5 / 4, 4 / 5)
    assert more.random == less.random == 3.0


@pytest.mark.parametrize("which", ["none", "all", "unknown"])
def test_a_set_of_no_heads_all_heads_or_heads_of_another_model_is_refused(which):
    model = random_model()
    heads = {"none": [], "all": all_heads(model), "unknown": [(HeadSite.at("cross", 9, 2), 0)]}[which]
    with pytest.raises(
        ValueError, match=r"no decoder\.9\.cross" if which == "unknown" else "expected some heads of"
    ):
        set_effects(model, in_batches(PAIRS, 3), closing(heads), lead)
