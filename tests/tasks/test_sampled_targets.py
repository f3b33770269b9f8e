"""Targets sampled from a model: as often as it says, only where there are some."""

import torch

from headgates.analysis.batches import sampled
from headgates.data.batch import collate
from headgates.data.special_tokens import SpecialTokens
from headgates.tasks.translation import Translation

PAIRS = [([7, 5, 11, 4], [5, 7]), ([8, 6, 22], [18, 4, 9, 11]), ([12], [])]


def test_ids_are_sampled_as_often_as_the_softmax_says():
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)) * 2
    count = 20_000
    ids = sampled(logits.expand(count, 2, 5), torch.Generator().manual_seed(2))  # (count, 2)
    for place in range(2):
        frequency = torch.bincount(ids[:, place], minlength=5) / count
        p = logits[place].softmax(-1)
        assert ((frequency - p).abs() < 4 * (p * (1 - p) / count).sqrt()).all()  # 4 standard errors


@torch.no_grad()
def test_a_translations_tokens_are_sampled_after_the_given_ones_and_padding_stays(make_model):
    model, batch = make_model(), collate(PAIRS, [0, 1, 2], 1)
    model.output.weight.zero_()  # all tokens equally likely, padding too
    padding, seen = batch.target_out == SpecialTokens().padding, []
    for seed in range(11):
        found = Translation().sampled(model, batch, torch.Generator().manual_seed(seed))
        assert torch.equal(found.target_in, batch.target_in)
        assert torch.equal(found.source, batch.source)
        assert torch.equal(found.target_out == SpecialTokens().padding, padding)
        seen.append(found.target_out)
    assert not torch.equal(seen[0], seen[1])
