"""Effects on contrasts: against closing by hand, and where the truth is planted."""

import copy

import numpy as np
import pytest
import torch

from headgates.analysis.batches import sites_of
from headgates.analysis.contrasts import (
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


def test_p_values_and_intervals_of_noise_are_right_about_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 41, generator=generator, dtype=torch.float64)
    rows = mean_changes(noise, 1000)
    wrong = [row["p_value"] < 0.05 for row in rows], [not row["low"] <= 0 <= row["high"] for row in rows]
    for each in wrong:
        assert 0.025 < sum(each) / 400 < 0.075
    assert sum(row["p_value_holm"] < 0.05 for row in rows) <= 2
    planted = mean_changes(torch.cat([noise[:9] + 1.0, noise[9:40], torch.zeros(1, 41)]), 10_000)
    assert all(row["p_value_holm"] < 0.01 and row["low"] > 0 for row in planted[:9])
    assert planted[0]["mean"] == pytest.approx(float(noise[0].mean()) + 1)
    assert planted[-1] == {"mean": 0, "low": 0, "high": 0, "p_value": 1, "p_value_holm": 1}


@pytest.mark.parametrize("freedom", [3, 300])
def test_of_heads_without_effect_one_is_named_by_few_pairs_no_oftener_than_at_the_level(freedom):
    drawn = np.random.default_rng(freedom).standard_t(freedom, size=(200, 48, 20))
    named = [
        any(row["p_value_holm"] < 0.05 for row in mean_changes(torch.from_numpy(each), 10_000))
        for each in drawn
    ]
    assert sum(named) / 200 < 0.075 + 2 * (0.05 * 0.95 / 200) ** 0.5


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
