"""What heads are worth and do in a model whose special tokens have other ids is what they do in the model
with ours."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from headgates.analysis.alignment import Alignment, Entropy
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.lrp import relevance
from headgates.analysis.rare_words import RareWords
from headgates.analysis.ratio_walk import RatioWalk
from headgates.analysis.scores.importance import importance
from headgates.gates import HeadSite
from tests.renumbered import OTHERWISE, PAIRS, SOURCE_VOCAB, batches, twins

every_numbering = pytest.mark.parametrize("specials", OTHERWISE.values(), ids=OTHERWISE)


def assert_same(found: Mapping[HeadSite, Tensor], expected: Mapping[HeadSite, Tensor]) -> None:
    assert list(found) == list(expected)
    for site in expected:
        torch.testing.assert_close(found[site], expected[site], rtol=1e-4, atol=1e-6)


class Kept:
    def __init__(self):
        self.seen = []

    def add(self, seen):
        self.seen.append(seen)


@every_numbering
@pytest.mark.parametrize("exclude", ["both", "query", "key", "none"])
def test_recorded_attention_and_what_counts_in_it_are_the_same(specials, exclude):
    kept = []
    for translator in twins(specials):
        kept.append(Kept())
        observe_attention(translator.model, batches(translator), [kept[-1]])
    for expected, found in zip(*(each.seen for each in kept), strict=True):
        assert_same(found.weights, expected.weights)
        for kind in ("enc-self", "dec-self", "cross"):
            assert torch.equal(found.visible(kind, exclude), expected.visible(kind, exclude))
            assert found.visible(kind, exclude).any()


@every_numbering
def test_rare_words_alignment_and_entropy_are_the_same(specials):
    counts = torch.arange(100, 100 + SOURCE_VOCAB)
    links = {number: [(0, t) for t in range(len(target))] for number, (_, target) in enumerate(PAIRS)}
    results = []
    for translator in twins(specials):
        own = torch.zeros(SOURCE_VOCAB, dtype=torch.int64)
        own[translator.source_vocab.ids] = counts
        observers = RareWords(own, 11), Alignment(links), Entropy()
        observe_attention(translator.model, batches(translator), observers)
        results.append(observers)
    (rare, alignment, entropy), (other_rare, other_alignment, other_entropy) = results
    assert (other_rare.sentences, other_rare.queries, other_rare.chance()) == (
        rare.sentences,
        rare.queries,
        rare.chance(),
    )
    assert_same(other_rare.two_rarest(), rare.two_rarest())
    assert_same(other_alignment.agreement(), alignment.agreement())
    assert_same(other_entropy.nats(), entropy.nats())


@every_numbering
@pytest.mark.parametrize("absolute", ["sentence", "token", "batch"])
def test_importance_is_the_same(specials, absolute):
    expected, found = (importance(each.model, batches(each), absolute=absolute) for each in twins(specials))
    assert_same(found, expected)


@every_numbering
@pytest.mark.parametrize("rule", [None, RatioWalk])
def test_relevance_is_the_same(specials, rule):
    expected, found = (relevance(each.model, batches(each), walk=rule) for each in twins(specials))
    assert found.steps == expected.steps
    assert_same(found.share, expected.share)
