"""Rare words against one sentence, head and query at a time."""

from collections import defaultdict

import pytest
import torch

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.rare_words import RareWords, token_counts
from headgates.data.special_tokens import SpecialTokens
from tests.analysis.one_by_one import (
    VOCAB,
    assert_equal,
    in_batches,
    looks,
    mean_map,
    random_model,
    random_pairs,
)

EOS = SpecialTokens().end

# many equal counts, unseen pieces, and specials that are more frequent than any word
COUNTS = [97, 89, 83, 0] + [(7 * i) % 11 for i in range(VOCAB - 4)]
KINDS = ["enc-self"]


def slow(model, pairs, rank, exclude):
    """(rarest, two rarest, chance of both), by the words of the definition."""
    hits = defaultdict(list), defaultdict(list)
    chance = [], []
    sentences = 0
    encoder = [look for look in looks(model, pairs, exclude) if "enc-self" in look.site]
    for number, (source, _) in enumerate(pairs):
        least = sorted(COUNTS[token] for token in source)
        if len(source) < 2 or sum(count > least[0] for count in COUNTS[EOS + 1 :]) < rank:
            continue
        sentences += 1
        sets = [{i for i, token in enumerate(source) if COUNTS[token] <= least[n]} for n in (0, 1)]
        for look in encoder:
            if look.pair == number:
                for each, chosen, odds in zip(hits, sets, chance, strict=True):
                    each[look.site, look.head].append(look.argmax in chosen)
                    odds.append(len(chosen) / len(look.keys))
    return *map(mean_map, hits), [sum(odds) / len(odds) for odds in chance], sentences


@pytest.mark.parametrize("exclude", ["both", "query", "key", "none"])
@pytest.mark.parametrize(("size", "rank"), [(1, 20), (3, 23), (8, 3)])
def test_the_shares_are_those_of_a_slow_count(exclude, size, rank):
    model, pairs = random_model(), random_pairs()
    rare = RareWords(COUNTS, rank, exclude=exclude)
    observe_attention(model, in_batches(pairs, size), [rare])  # other kinds are passed over
    rarest, two_rarest, chance, sentences = slow(model, pairs, rank, exclude)
    assert 0 < sentences < len(pairs)
    assert_equal(rare.rarest(), rarest)
    assert_equal(rare.two_rarest(), two_rarest)
    assert rare.chance() == pytest.approx(chance)
    assert (rare.sentences, rare.sentences_seen) == (sentences, len(pairs))


def one_sentence(source: list[int], counts: list[int], rank: int = 1) -> RareWords:
    rare = RareWords(counts, rank)
    observe_attention(random_model(), in_batches([(source, [5])], 1), [rare], kinds=KINDS)
    return rare


def test_a_rare_piece_that_occurs_twice_is_both_of_the_two_rarest():
    rare = one_sentence([5, 6, 5, 7, 8], [0] * 5 + [1, 2, 3, 4] + [9] * (VOCAB - 9))
    assert rare.chance() == pytest.approx((2 / 5, 2 / 5))


def test_pieces_of_equal_count_are_all_the_rarest():
    rare = one_sentence([5, 6, 7, 8, 9], [0] * 5 + [1, 1, 1, 4, 2] + [9] * (VOCAB - 10))
    assert rare.chance() == pytest.approx((3 / 5, 3 / 5))


def test_a_piece_is_outside_the_rank_when_that_many_are_more_frequent():
    counts = [0] * 4 + [7, 5, 5, 3] + [0] * (VOCAB - 8)  # pieces 4 to 7
    assert one_sentence([4, 5], counts, rank=1).sentences == 1
    assert (
        one_sentence([4, 5], counts, rank=2).sentences == 0
    )  # 5 and 6 are equal: one piece is more frequent
    assert one_sentence([6, 7], counts, rank=3).sentences == 1
    assert one_sentence([6, 7], counts, rank=4).sentences == 0
    assert (
        one_sentence([6, 3], counts, rank=4).sentences == 1
    )  # an unknown piece is a piece, and never occurs in training


def test_sentences_of_one_token_are_left_out():
    assert one_sentence([30], [0] * 4 + [5] * (VOCAB - 5) + [1]).sentences == 0


def test_tokens_are_counted():
    assert token_counts([[4, 5], [], [5, 5, 7]], 11).tolist() == [0, 0, 0, 0, 1, 3, 0, 1, 0, 0, 0]
    assert token_counts([], 5).tolist() == [0] * 5


def test_no_rare_sentence_says_how_many_pieces_there_are():
    rare = one_sentence([5, 6], [0] * 4 + [3] * 7 + [0] * (VOCAB - 11), rank=500)
    with pytest.raises(
        ValueError, match=r"none of the 1 sentences .* outside the 500 most frequent \(7 different ones"
    ):
        rare.rarest()
    with pytest.raises(ValueError, match="smaller rare_rank"):
        rare.chance()


def test_a_model_without_encoder_heads_counts_of_another_vocabulary_and_bad_settings_are_refused():
    rare = RareWords(COUNTS, 20)
    observe_attention(random_model(), in_batches(random_pairs(), 8), [rare], kinds=["cross"])
    with pytest.raises(ValueError, match="add the kind enc-self"):
        rare.two_rarest()
    with pytest.raises(ValueError, match="counts are of 6 pieces, but a source has piece"):
        observe_attention(
            random_model(), in_batches(random_pairs(), 8), [RareWords(torch.ones(6), 1)], kinds=KINDS
        )
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        RareWords(COUNTS, 0)
    with pytest.raises(ValueError, match="unknown exclude"):
        RareWords(COUNTS, exclude="eos")
