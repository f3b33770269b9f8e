"""Pairs of heads against closing by hand."""

import copy
from itertools import combinations

import pytest
import torch

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.interactions import closing, interactions
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.gates import zero_heads
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

BATCHES = in_batches(random_pairs()[:5], 2)


def test_a_pair_is_the_loss_with_both_heads_columns_at_zero_minus_that_of_each():
    model = random_model().double()
    first, second, *_, last = sites_of(model, None)
    places = [(first, 0), (first, 1), (second, 0), (last, 0)]

    @torch.no_grad()
    def mean_loss(*heads) -> float:
        zeroed = copy.deepcopy(model)
        zero_heads(zeroed, closing(heads))
        return sum(float(batch_loss(zeroed, batch)) for batch in BATCHES) / 5

    found = interactions(model, BATCHES, places, exact_effects(model, BATCHES))
    assert sorted((each.first, each.second) for each in found) == sorted(combinations(places, 2))
    whole = mean_loss()
    for each in found:
        singly = mean_loss(each.first) + mean_loss(each.second) - 2 * whole
        assert each.both == pytest.approx(mean_loss(each.first, each.second) - whole, abs=1e-6)
        assert each.interaction == pytest.approx(each.both - singly, abs=1e-6)
    sizes = [abs(each.interaction) for each in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.01
