"""Pairs of heads against closing by hand, and where what they do for each other is planted."""

import pytest
import torch

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.interactions import interactions
from headgates.analysis.scores.loss_without import loss_without
from headgates.gates.sites import BANK
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

BATCHES = in_batches(random_pairs()[:5], 2)


@torch.no_grad()
def test_a_pair_is_the_loss_with_both_heads_columns_at_zero_minus_that_of_each():
    model = random_model().double()
    modules = sites_of(model, None)
    places = [(site, head) for site in (*modules,)[:2] for head in range(2)] + [((*modules,)[-1], 0)]

    def mean_loss(*heads) -> float:
        kept = {site: module.out_proj.weight.clone() for site, module in modules.items()}
        for site, head in heads:
            modules[site].out_proj.weight.unflatten(1, (site.heads, -1))[:, head] = 0.0
        total = sum(float(batch_loss(model, batch)) for batch in BATCHES) / 5
        for site, weight in kept.items():
            modules[site].out_proj.weight.copy_(weight)
        return total

    found = interactions(model, BATCHES, places, loss_without(model, BATCHES))
    assert {frozenset((each.first, each.second)) for each in found} == {
        frozenset((a, b)) for a in places for b in places if a != b
    }
    whole = mean_loss()
    for each in found:
        singly = mean_loss(each.first) + mean_loss(each.second) - 2 * whole
        assert each.both == pytest.approx(mean_loss(each.first, each.second) - whole, abs=1e-6)
        assert each.interaction == pytest.approx(each.both - singly, abs=1e-6)
    sizes = [abs(each.interaction) for each in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.01


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [(max, 1.0), (lambda a, b: a + b, 0.0), (lambda a, b: a * b, -1.0)],
    ids=["either is enough", "independent", "one needs the other"],
)
def test_backup_is_above_zero_and_a_chain_below(loss_of, expected):
    model = random_model()
    site = next(iter(sites_of(model, None)))

    def loss(model, batch):
        a, b, *_ = getattr(model, BANK).values()[site].tolist()
        return torch.tensor(-loss_of(a, b) * len(batch))

    (found,) = interactions(
        model, BATCHES, [(site, 0), (site, 1)], loss_without(model, BATCHES, loss=loss), loss=loss
    )
    assert found.interaction == pytest.approx(expected)
