"""Alignment and entropy against one sentence, head and query at a time."""

from collections import Counter, defaultdict
from math import log

import pytest
import torch

from headgates.analysis.alignment import Alignment, Entropy, piece_links
from headgates.analysis.attention_pass import observe_attention
from tests.analysis.one_by_one import assert_equal, in_batches, looks, mean_map, random_model, random_pairs

KINDS = ["cross"]


def random_links(pairs, seed=0):
    """Some links in each pair but one, several to a token and none to others."""
    generator = torch.Generator().manual_seed(seed)
    gold = []
    for source, target in pairs:
        mask = torch.rand(len(source), len(target), generator=generator) < 0.3
        gold.append([tuple(link) for link in mask.nonzero().tolist()])
    gold[4] = []
    return gold


def slow(model, pairs, gold, token):
    hits, offsets, tokens = defaultdict(list), Counter(), set()
    for look in looks(model, pairs, "key"):
        if "cross" in look.site:
            target = look.query - (token == "read")
            aligned = {s for s, t in gold[look.pair] if t == target}
            if aligned:
                hits[look.site, look.head].append(look.argmax in aligned)
                if (look.pair, target) not in tokens:
                    tokens.add((look.pair, target))
                    offsets.update(s - look.query for s in aligned)
    best = min(offsets, key=lambda offset: (-offsets[offset], abs(offset), offset))
    return mean_map(hits), best, offsets[best] / len(tokens), len(tokens)


@pytest.mark.parametrize("token", ["produced", "read"])
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_agreement_and_baseline_are_those_of_a_slow_count(token, size, as_mapping):
    model, pairs = random_model(), random_pairs()
    gold = random_links(pairs)
    given = (
        {number: gold[number] for number in (6, 3, 9, 0, 1, 2, 4, 8, 5, 7)} | {99: [(0, 0)]}
        if as_mapping
        else gold
    )
    alignment = Alignment(given, token=token)
    observe_attention(model, in_batches(pairs, size), [alignment])  # other kinds are passed over
    agreement, offset, share, tokens = slow(model, pairs, gold, token)
    assert_equal(alignment.agreement(), agreement)
    baseline = alignment.baseline()
    assert (baseline.offset, baseline.share) == (offset, pytest.approx(share))
    assert alignment.tokens == tokens


def test_the_end_of_sentence_is_never_looked_at():
    model, pairs = random_model(), random_pairs()
    everything = [
        [(s, t) for s in range(len(source)) for t in range(len(target))] for source, target in pairs
    ]
    alignment = Alignment(everything)
    observe_attention(model, in_batches(pairs, 3), [alignment], kinds=KINDS)
    assert (alignment.agreement().flat() == 1).all()
    assert alignment.tokens == sum(len(target) for source, target in pairs if source)


def test_of_equally_frequent_offsets_the_nearest_and_then_the_earlier_is_the_baseline():
    for links, offset in (([(0, 1), (2, 1)], -1), ([(0, 2), (2, 1)], 1)):
        alignment = Alignment([links])
        observe_attention(random_model(), in_batches([([5, 6, 7], [8, 9, 10])], 1), [alignment], kinds=KINDS)
        assert alignment.baseline().offset == offset


def test_every_piece_of_a_word_has_its_links_and_pieces_of_no_word_none():
    source, target = [0, 0, 1, None, 2], [0, 1, 1]
    assert piece_links([(0, 1), (2, 0), (2, 1), (5, 1), (0, 1)], source, target) == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
        (4, 0),
        (4, 1),
        (4, 2),
    ]
    assert piece_links([], source, target) == []


def test_links_that_do_not_fit_and_pairs_without_links_are_refused():
    model, pairs = random_model(), [([5, 6, 7], [8, 9])]

    def run(gold, **options):
        observe_attention(model, in_batches(pairs, 1), [Alignment(gold, **options)], kinds=KINDS)

    run([[(2, 1)]])
    run([[(2, 1)]], token="read")
    with pytest.raises(
        ValueError, match="alignment of pair 0 names source piece 3, but the sentence has 3 pieces"
    ):
        run([[(0, 0), (3, 1)]])
    with pytest.raises(ValueError, match="names target piece 2, but the sentence has 2 pieces"):
        run([[(0, 2)]])
    with pytest.raises(ValueError, match="names target piece -1"):
        run([[(0, -1)]])
    for gold in ([], {1: [(0, 0)]}, {5: []}):
        with pytest.raises(ValueError, match="there is no alignment for pair 0"):
            run(gold)
    with pytest.raises(ValueError, match="unknown token 'written'; known: produced, read"):
        run([[]], token="written")


def test_without_an_aligned_token_there_is_no_agreement():
    alignment = Alignment([[]])
    observe_attention(random_model(), in_batches([([5, 6], [7])], 1), [alignment], kinds=KINDS)
    for result in (alignment.agreement, alignment.baseline):
        with pytest.raises(ValueError, match="alignment has nothing to count"):
            result()


@pytest.mark.parametrize("size", [1, 3, 8])
def test_entropy_is_that_of_a_slow_sum(size):
    model, pairs = random_model(), random_pairs()
    entropy = Entropy()
    observe_attention(model, in_batches(pairs, size), [entropy])
    nats, relative = defaultdict(list), defaultdict(list)
    for look in looks(model, pairs, "query"):
        each = -sum(weight * log(weight) for weight in look.keys.values() if weight)
        nats[look.site, look.head].append(each)
        if len(look.keys) > 1:
            relative[look.site, look.head].append(each / log(len(look.keys)))
    assert_equal(entropy.nats(), mean_map(nats))
    assert_equal(entropy.relative(), mean_map(relative))
    assert (entropy.relative().flat() <= 1).all()


def test_without_a_token_there_is_no_entropy():
    with pytest.raises(ValueError, match="entropy has nothing to count"):
        Entropy().nats()
