"""Rare words against one sentence, head and query at a time."""

from collections import defaultdict

import pytest
import torch

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.rare_words import RareWords, token_counts
from headgates.data.special_tokens import SpecialTokens
from tests.worlds.one_by_one import (
    VOCAB,
    assert_equal,
    in_batches,
    looks,
    mean_map,
    random_model,
    random_pairs,
)

# many equal counts, unseen pieces, and specials that are more frequent than any word
COUNTS = [97, 89, 83, 0] + [(7 * i) % 11 for i in range(VOCAB - 4)]


def slow(model, pairs, rank):
    """(rarest, two rarest, chance of both, sentences), by the words of the definition."""
    hits, chance, sentences = (defaultdict(list), defaultdict(list)), ([], []), set()
    for look in looks(model, pairs):
        source = pairs[look.pair][0]
        least = sorted(COUNTS[token] for token in source)
        more_frequent = sum(count > least[0] for count in COUNTS[SpecialTokens().end + 1 :]) if least else 0
        if "enc-self" in look.site and len(source) > 1 and more_frequent >= rank:
            sentences.add(look.pair)
            for n in (0, 1):
                chosen = {i for i, token in enumerate(source) if COUNTS[token] <= least[n]}
                hits[n][look.site, look.head].append(look.argmax in chosen)
                chance[n].append(len(chosen) / len(look.keys))
    return *map(mean_map, hits), [sum(odds) / len(odds) for odds in chance], len(sentences)


@pytest.mark.parametrize(("rank", "size"), [(3, 1), (20, 3)])
def test_the_shares_are_those_of_a_slow_count(rank, size):
    model, pairs = random_model(), random_pairs()
    rare = RareWords(COUNTS, rank)
    observe_attention(model, in_batches(pairs, size), [rare])  # other kinds are passed over
    rarest, two_rarest, chance, sentences = slow(model, pairs, rank)
    assert 0 < sentences < len(pairs)
    assert_equal(rare.rarest(), rarest)
    assert_equal(rare.two_rarest(), two_rarest)
    assert rare.chance() == pytest.approx(chance)
    assert (rare.sentences, rare.sentences_seen) == (sentences, len(pairs))


def one_sentence(source: list[int], counts: list[int], rank: int = 1) -> RareWords:
    """counts: of the pieces from 4 on, as far as they are not 0."""
    rare = RareWords([0] * 4 + counts + [0] * (VOCAB - 4 - len(counts)), rank)
    observe_attention(random_model(), in_batches([(source, [5])], 1), [rare])
    return rare


def test_tokens_are_counted():
    assert token_counts([[4, 5], [], torch.tensor([5, 7])], 9).tolist() == [0, 0, 0, 0, 1, 2, 0, 1, 0]


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(
        ValueError, match=r"none of the 1 sentences .* the 500 most frequent \(7 different ones"
    ):
        one_sentence([5, 6], [3] * 7, rank=500).chance()
    with pytest.raises(ValueError, match="add the kind enc-self"):
        RareWords(COUNTS).two_rarest()
    with pytest.raises(ValueError, match="counts are of 6 pieces, but a source has piece"):
        observe_attention(random_model(), in_batches(random_pairs(), 8), [RareWords(torch.ones(6), 1)])
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        RareWords(COUNTS, 0)
