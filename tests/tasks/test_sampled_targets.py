"""Targets sampled from a model: as often as it says, only where there are some."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headgates.analysis import batches
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


def test_no_more_than_a_chunk_of_probabilities_is_in_memory_and_chunks_change_no_draw(monkeypatch):
    logits = torch.randn(13, 11, 7, generator=torch.Generator().manual_seed(1))
    logits[..., -1] = -torch.inf  # the last is never drawn, rounding or not
    whole = sampled(logits, torch.Generator().manual_seed(2))
    monkeypatch.setattr(batches, "DRAWN_AT_ONCE", (20, 20))
    sizes = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            sizes.extend([found.numel()] if func is torch.ops.aten._softmax.default else [])
            return found

    with Recorded():
        again = sampled(logits, torch.Generator().manual_seed(2))
    assert torch.equal(again, whole)
    assert whole.max() == 5
    assert max(sizes) == 14


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
