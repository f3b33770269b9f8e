"""Targets drawn from a model: as often as it says, only where there are some."""

import torch

from headgates.analysis.batches import sampled
from headgates.data.batch import collate
from headgates.data.special_tokens import SpecialTokens
from headgates.tasks.translation import Translation

PAIRS = [([7, 5, 11, 4], [5, 7]), ([8, 6, 22], [18, 4, 9, 11]), ([12], [])]


def test_ids_are_drawn_as_often_as_the_softmax_says():
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)) * 2
    count = 20_000
    ids = sampled(logits.expand(count, 2, 5), torch.Generator().manual_seed(2))  # (count, 2)
    for place in range(2):
        frequency = torch.bincount(ids[:, place], minlength=5) / count
        p = logits[place].softmax(-1)
        assert ((frequency - p).abs() < 4 * (p * (1 - p) / count).sqrt()).all()  # 4 standard errors


def test_a_translations_tokens_are_drawn_after_the_given_ones_and_padding_stays(make_model):
    model, batch = make_model(), collate(PAIRS, [0, 1, 2], 1)
    found = Translation().drawn(model, batch, torch.Generator().manual_seed(3))
    padding = batch.target_out == SpecialTokens().padding
    assert (found.target_out == SpecialTokens().padding)[padding].all()
    assert torch.equal(found.target_in, batch.target_in)
    assert torch.equal(found.source, batch.source)
    with torch.no_grad():  # a model that finds all tokens about equally likely, padding too
        model.output.weight[0] = 0
        model.output.weight[1:] *= 1e-3
        model.decoder.norm.bias[:] = 0
    for seed in range(20):
        drawn = Translation().drawn(model, batch, torch.Generator().manual_seed(seed)).target_out
        assert torch.equal(drawn == SpecialTokens().padding, padding)
    other = Translation().drawn(model, batch, torch.Generator().manual_seed(4))
    assert not torch.equal(found.target_out, other.target_out)
