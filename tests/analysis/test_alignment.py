"""Alignment and entropy against one sentence, head and query at a time."""

from collections import Counter, defaultdict
from math import log

import pytest
import torch

from headgates.analysis.alignment import Alignment, Entropy, piece_links
from headgates.analysis.attention_pass import observe_attention
from tests.worlds.one_by_one import assert_equal, in_batches, looks, mean_map, random_model, random_pairs

PAIRS = random_pairs()


def aligned(gold, pairs=PAIRS, size=3) -> Alignment:
    alignment = Alignment(gold)
    observe_attention(random_model(), in_batches(pairs, size), [alignment])  # other kinds are passed over
    return alignment


@pytest.mark.parametrize(("size", "make"), [(1, list), (8, dict)])
def test_agreement_and_baseline_are_those_of_a_slow_count(size, make):
    torch.manual_seed(0)  # several links to a token and none to others
    gold = [(torch.rand(len(s), len(t)) < 0.3).nonzero().tolist() for s, t in PAIRS]
    gold[4] = []
    hits, offsets, tokens = defaultdict(list), Counter(), set()
    for look in looks(random_model(), PAIRS, "key"):
        links = {s for s, t in gold[look.pair] if t == look.query}
        if "cross" in look.site and links:
            hits[look.site, look.head].append(look.argmax in links)
            if (look.pair, look.query) not in tokens:
                tokens.add((look.pair, look.query))
                offsets.update(s - look.query for s in links)
    best = min(offsets, key=lambda offset: (-offsets[offset], abs(offset), offset))
    alignment = aligned(make(enumerate(gold)) if make is dict else gold, size=size)
    assert_equal(alignment.agreement(), mean_map(hits))
    assert alignment.baseline() == (best, pytest.approx(offsets[best] / len(tokens)))
    assert alignment.tokens == len(tokens)


def test_of_equally_frequent_offsets_the_nearest_and_then_the_earlier_is_the_baseline():
    for links, offset in (([(0, 1), (2, 1)], -1), ([(0, 2), (2, 1)], 1)):
        assert aligned([links], [([5, 6, 7], [8, 9, 10])]).baseline().offset == offset


def test_every_piece_of_a_word_has_its_links_and_pieces_of_no_word_none():
    source, target = [0, 0, 1, None, 2], [0, 1, 1]
    found = piece_links([(0, 1), (2, 0), (2, 1), (5, 1), (0, 1)], source, target)
    assert found == [(0, 1), (0, 2), (1, 1), (1, 2), (4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ([[(0, 0), (3, 1)]], "alignment of pair 0 names source piece 3, but the sentence has 3 pieces"),
        ([[(0, 2)]], "names target piece 2, but the sentence has 2 pieces"),
        ([[(0, -1)]], "names target piece -1"),
        ({1: [(0, 0)]}, "there is no alignment for pair 0"),
    ],
)
def test_links_that_do_not_fit_and_pairs_without_links_are_refused(gold, message):
    with pytest.raises(ValueError, match=message):
        aligned(gold, [([5, 6, 7], [8, 9])])


def test_without_a_token_there_is_nothing_to_count():
    alignment = aligned([[]], [([5, 6], [7])])
    for result in (alignment.agreement, alignment.baseline, Entropy().nats):
        with pytest.raises(ValueError, match="has nothing to count"):
            result()


@pytest.mark.parametrize("size", [1, 8])
def test_entropy_is_that_of_a_slow_sum(size):
    entropy = Entropy()
    observe_attention(random_model(), in_batches(PAIRS, size), [entropy])
    nats, relative = defaultdict(list), defaultdict(list)
    for look in looks(random_model(), PAIRS, "query"):
        each = -sum(weight * log(weight) for weight in look.keys.values() if weight)
        nats[look.site, look.head].append(each)
        if len(look.keys) > 1:
            relative[look.site, look.head].append(each / log(len(look.keys)))
    assert_equal(entropy.nats(), mean_map(nats))
    assert_equal(entropy.relative(), mean_map(relative))
