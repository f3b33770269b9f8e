"""The toy language pair as a corpus: its words, its splits, the same everywhere."""

import hashlib
import math
from collections import Counter

import pytest

from headgates.data import load_corpus
from headgates.data.parallel import DataError
from headgates.data.toy import LONGEST, SPLITS, generate, to_conllu, toy_corpus, toy_pairs

PAIRS = generate(3001, 7)


def test_heads_have_relations_to_find_near_and_far():
    labels, far = Counter(), Counter()
    for pair in PAIRS[:2000]:
        for i, (head, label) in enumerate(zip(pair.heads, pair.labels, strict=True), start=1):
            labels[label] += 1
            far[label] += abs(head - i) > 1
    for relation in ("nsubj", "dobj", "amod", "advmod"):
        assert labels[relation] >= 300
    assert far["nsubj"] / labels["nsubj"] > 0.35
    assert far["amod"] / labels["amod"] > 0.1


def test_words_are_some_300_and_zipf_like_with_a_rare_tail():
    pairs = toy_pairs("train")
    counts = Counter(word.lower() for pair in pairs for word in pair.words if word.isalpha())
    assert 250 <= len(counts) <= 350
    ranked = [n for _, n in counts.most_common()]
    assert ranked[-1] >= 20  # never too rare to be learnt
    assert sum(n < 200 for n in ranked) > 50
    x, y = [math.log(r) for r in range(1, len(ranked) + 1)], [math.log(n) for n in ranked]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )
    assert -1.3 < slope < -0.7
    lengths = [len(pair.words) for pair in pairs]
    assert 9 <= sum(lengths) / len(lengths) <= 13
    assert max(lengths) <= LONGEST


def test_splits_share_no_sentence_and_repeat_none():
    corpus = toy_corpus()
    texts = [corpus.train, corpus.valid, corpus.test]
    assert [len(text.sources) for text in texts] == [16000, 500, 1000]
    assert len({source for text in texts for source in text.sources}) == 17500


def test_pairs_are_the_corpus_in_its_order():
    corpus = toy_corpus()
    for split in SPLITS:
        pairs = toy_pairs(split)
        assert [pair.source for pair in pairs] == corpus.split(split).sources
        assert [pair.target for pair in pairs] == corpus.split(split).targets


def test_test_sentences_do_not_depend_on_the_size_of_the_training_set():
    assert (
        toy_corpus(train=7, valid=5, test=11).test.sources
        == toy_corpus(train=13, valid=5, test=11).test.sources
    )


def test_the_corpus_by_name_is_the_corpus_of_the_trees():
    assert load_corpus("toy").test.sources == [pair.source for pair in toy_pairs("test")]


def test_the_same_seed_gives_the_same_pairs_everywhere():
    def digest() -> str:
        return hashlib.sha256("\n".join(repr(pair) for pair in generate(1000, 1)).encode()).hexdigest()

    assert digest() == digest() == "5613ae7b5259ead3303de5bbcb165db3269a9da24e801b26c3d822344404630a"
    assert generate(11, 1) == generate(101, 1)[:11]
    assert generate(11, 1) != generate(11, 2)


def test_conllu_has_ten_columns_and_the_tree():
    pair = next(pair for pair in PAIRS if "," in pair.words)
    *comments, text = to_conllu(pair).split("\n", 2)
    assert comments[0] == f"# text = {pair.source}"
    assert text.endswith("\n\n")
    rows = [line.split("\t") for line in text.strip().split("\n")]
    assert all(len(row) == 10 for row in rows)
    assert [(row[1], int(row[6]), row[7]) for row in rows] == list(
        zip(pair.words, pair.heads, pair.labels, strict=True)
    )
    assert "".join(row[1] + ("" if row[9] == "SpaceAfter=No" else " ") for row in rows).strip() == pair.source


def test_other_languages_and_splits_are_refused_in_words():
    with pytest.raises(DataError, match="en-de, got de-en"):
        toy_corpus(src="de", tgt="en")
    with pytest.raises(DataError, match="did you mean 'valid'"):
        toy_pairs("valids")
