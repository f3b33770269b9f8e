"""The exact effect of a head against a loop over heads and sentences."""

import copy

import torch

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.scores.exact_effects import exact_effects
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

PAIRS = random_pairs()[:5]


@torch.no_grad()
def test_an_effect_is_the_mean_rise_of_a_sentences_loss_when_the_heads_columns_are_zero():
    model, sentences = random_model().eval(), in_batches(PAIRS, 1)
    whole = [float(batch_loss(model, batch)) for batch in sentences]
    found = exact_effects(model, in_batches(PAIRS, 2))
    for site in sites_of(model, None):
        rises = []
        for head in range(site.heads):
            without = copy.deepcopy(model)
            weight = sites_of(without, None)[site].out_proj.weight
            width = weight.shape[1] // site.heads
            weight[:, head * width : (head + 1) * width] = 0.0
            losses = [float(batch_loss(without, batch)) for batch in sentences]
            rises.append(sum(a - b for a, b in zip(losses, whole, strict=True)) / len(sentences))
        expected = torch.tensor(rises, dtype=torch.float64)
        torch.testing.assert_close(found[site], expected, rtol=1e-3, atol=1e-4)
    assert found.flat().abs().max() > 0.01
