"""Where heads look, against one sentence, head and query at a time: offsets, rare words, gold alignments, and
how spread they look. Every observer passes over the kinds that it does not ask for."""

from collections import Counter, defaultdict
from math import log

import pytest
import torch

from headgates.analysis.alignment import Alignment, Baseline, Entropy, alignment_heads, piece_links
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.positions import Positions
from headgates.analysis.rare_words import RareWords, token_counts
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite
from tests.worlds.one_by_one import (
    VOCAB,
    assert_equal,
    in_batches,
    looks,
    mean_map,
    random_model,
    random_pairs,
)

PAIRS = random_pairs()


def observed(observer, size: int = 3, pairs=PAIRS):
    observe_attention(random_model(), in_batches(pairs, size), [observer])
    return observer


# --- offsets


@pytest.mark.parametrize("size", [1, 3])
def test_every_offset_has_the_share_of_a_slow_count_and_the_best_is_chosen_of_them(size):
    """The best: the most frequent, then the larger share, the nearest, the earlier."""
    window = 2 + size
    positions = observed(Positions(window), size)
    at, inside, queries = defaultdict(Counter), defaultdict(Counter), Counter()
    for look in looks(random_model(), PAIRS):
        head = look.site, look.head
        at[head][look.argmax - look.query] += 1
        inside[head].update(key - look.query for key in look.keys)
        queries[head] += 1
    rows, best = positions.offsets(), positions.best()
    there = {(*head, o) for head in inside for o in inside[head] if abs(o) <= window}
    assert {(row["site"], row["head"], row["offset"]) for row in rows} == there
    for row in rows:
        head, offset = (row["site"], row["head"]), row["offset"]
        counts = at[head][offset], inside[head][offset], queries[head]
        assert (row["looks"], row["inside"], row["queries"]) == counts
        assert row["share"] == pytest.approx(counts[0] / counts[1])
    for (site, head), counts in at.items():
        shares = {o: counts[o] / n for o, n in inside[site, head].items() if abs(o) <= window}
        chosen = min(shares, key=lambda o: (-counts[o], -shares[o], abs(o), o))
        assert best.offset[site][head] == chosen
        assert float(best.share[site][head]) == pytest.approx(shares[chosen])


# --- rare words


# many equal counts, unseen pieces, and specials that are more frequent than any word
COUNTS = [97, 89, 83, 0] + [(7 * i) % 11 for i in range(VOCAB - 4)]


def slow_rare(rank):
    """(rarest, two rarest, chance of both, sentences), by the words of the definition."""
    hits, chance, sentences = (defaultdict(list), defaultdict(list)), ([], []), set()
    for look in looks(random_model(), PAIRS):
        source = PAIRS[look.pair][0]
        least = sorted(COUNTS[token] for token in source)
        more_frequent = sum(count > least[0] for count in COUNTS[SpecialTokens().end + 1 :]) if least else 0
        if "enc-self" in look.site and len(source) > 1 and more_frequent >= rank:
            sentences.add(look.pair)
            for n in (0, 1):
                chosen = {i for i, token in enumerate(source) if COUNTS[token] <= least[n]}
                hits[n][look.site, look.head].append(look.argmax in chosen)
                chance[n].append(len(chosen) / len(look.keys))
    return *map(mean_map, hits), [sum(odds) / len(odds) for odds in chance], len(sentences)


# 15 pieces are more frequent than the rarest of one sentence
@pytest.mark.parametrize(("rank", "size"), [(3, 1), (15, 3)])
def test_the_shares_of_rare_words_are_those_of_a_slow_count(rank, size):
    rare = observed(RareWords(COUNTS, rank), size)
    rarest, two_rarest, chance, sentences = slow_rare(rank)
    assert 0 < sentences < len(PAIRS)
    assert_equal(rare.rarest(), rarest)
    assert_equal(rare.two_rarest(), two_rarest)
    assert rare.chance() == pytest.approx(chance)
    assert (rare.sentences, rare.sentences_seen) == (sentences, len(PAIRS))


def test_tokens_are_counted():
    assert token_counts([[4, 5], [], torch.tensor([5, 7])], 9).tolist() == [0, 0, 0, 0, 1, 2, 0, 1, 0]


# --- alignments and entropy


@pytest.mark.parametrize("size", [1, 8])
def test_agreement_and_baseline_are_those_of_a_slow_count(size):
    torch.manual_seed(0)  # several links to a token and none to others
    gold = [(torch.rand(len(s), len(t)) < 0.3).nonzero().tolist() for s, t in PAIRS]
    gold[4] = []
    hits = defaultdict(list)
    for look in looks(random_model(), PAIRS, "key"):
        links = {s for s, t in gold[look.pair] if t == look.query}
        if "cross" in look.site and links:
            hits[look.site, look.head].append(look.argmax in links)
    offsets = Counter(s - t for links in gold for s, t in links)
    tokens = sum(len({t for _, t in links}) for links in gold)
    best = min(offsets, key=lambda offset: (-offsets[offset], abs(offset), offset))
    alignment = observed(Alignment(dict(enumerate(gold))), size)
    assert_equal(alignment.agreement(), mean_map(hits))
    assert alignment.baseline() == (best, pytest.approx(offsets[best] / tokens))
    assert alignment.tokens == tokens


def test_of_equally_frequent_offsets_the_nearest_and_then_the_earlier_is_the_baseline():
    for links, offset in (([(0, 1), (2, 1)], -1), ([(0, 2), (2, 1)], 1)):
        assert observed(Alignment({0: links}), 1, [([5, 6, 7], [8, 9, 10])]).baseline().offset == offset


def test_heads_that_align_are_those_above_the_offset_the_best_first_and_else_the_best():
    first, second = (HeadSite.at("cross", layer, 3) for layer in range(2))
    agreement = HeadMap(
        {first: [0.2, 0.9, 0.4], second: [0.95, 0.1, 0.5], HeadSite.at("dec-self", 0, 3): [1.0, 1.0, 1.0]}
    )
    assert alignment_heads(agreement, Baseline(0, 0.4)) == [(1, 0), (0, 1), (1, 2)]
    assert alignment_heads(agreement, Baseline(0, 0.99)) == [(1, 0)]
    with pytest.raises(ValueError, match="has no cross heads"):
        alignment_heads(agreement.select(["dec-self"]), Baseline(0, 0.4))


def test_every_piece_of_a_word_has_its_links_and_pieces_of_no_word_none():
    source, target = [0, 0, 1, None, 2], [0, 1, 1]
    found = piece_links([(0, 1), (2, 0), (2, 1), (5, 1), (0, 1)], source, target)
    assert found == [(0, 1), (0, 2), (1, 1), (1, 2), (4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("link", [(3, 1), (0, 2), (0, -1)])
def test_links_beyond_the_sentences_are_refused(link):
    with pytest.raises(ValueError, match="the alignment of pair 0 links piece"):
        observed(Alignment({0: [(0, 0), link]}), 1, [([5, 6, 7], [8, 9])])


@pytest.mark.parametrize("size", [1, 8])
def test_entropy_is_that_of_a_slow_sum(size):
    entropy = observed(Entropy(), size)
    nats, relative = defaultdict(list), defaultdict(list)
    for look in looks(random_model(), PAIRS, "query"):
        each = -sum(weight * log(weight) for weight in look.keys.values() if weight)
        nats[look.site, look.head].append(each)
        if len(look.keys) > 1:
            relative[look.site, look.head].append(each / log(len(look.keys)))
    assert_equal(entropy.nats(), mean_map(nats))
    assert_equal(entropy.relative(), mean_map(relative))


# --- what cannot be counted


def test_without_a_token_there_is_nothing_to_count():
    alignment = observed(Alignment({0: []}), 1, [([5, 6], [7])])
    for result in (alignment.agreement, alignment.baseline, Entropy().nats, Positions().best):
        with pytest.raises(ValueError, match="nothing to count"):
            result()


def test_a_text_in_which_no_word_is_rare_and_rare_words_without_the_encoder_are_refused():
    with pytest.raises(ValueError, match=r"none of the 10 sentences .* the 500 .* \(7 different"):
        observed(RareWords([0] * 4 + [3] * 7 + [0] * 20)).chance()
    with pytest.raises(ValueError, match="add the kind enc-self"):
        RareWords(COUNTS).two_rarest()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RareWords([1] * 6, 1), "counts are of 6 pieces, but a source has piece"),
        (lambda: RareWords(COUNTS, 0), "expected at least 1, got 0"),
        (lambda: Positions(0), "expected at least 1, got 0"),
        (lambda: Alignment({1: [(0, 0)]}), "there is no alignment for pair 0"),
        (lambda: Alignment([[]]), "there is no alignment for pair"),
    ],
)
def test_arguments_that_do_not_fit_the_text_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        observed(make())
