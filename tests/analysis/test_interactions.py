"""Pairs of heads against closing by hand."""

import copy
from itertools import combinations

import pytest
import torch

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.interactions import interactions
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.without_heads import closing
from headgates.gates import zero_heads
from headgates.gates.headmap import head_name
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
    by_names = {(row["head"], row["other"]): row for row in found}
    assert len(found) == len(by_names) == 6
    whole = mean_loss()
    for first, second in combinations(places, 2):
        row = by_names[head_name(first), head_name(second)]
        alone = [mean_loss(head) - whole for head in (first, second)]
        assert [row["head_alone"], row["other_alone"]] == pytest.approx(alone, abs=1e-6)
        assert row["both"] == pytest.approx(mean_loss(first, second) - whole, abs=1e-6)
        assert row["interaction"] == pytest.approx(row["both"] - sum(alone), abs=1e-6)
    sizes = [abs(row["interaction"]) for row in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.01
