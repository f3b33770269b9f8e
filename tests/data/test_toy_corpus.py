"""The toy language pair as a corpus: its words, its splits, the same everywhere."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from headgates.data import load_corpus, toy
from headgates.data.text import DataError
from headgates.data.toy import LONGEST_SOURCE, SPLITS, drawn_once, generate, toy_corpus, toy_pairs

PAIRS = generate(2003, 7)


def test_heads_have_relations_to_find_near_and_far():
    labels, far = Counter(), Counter()
    for pair in PAIRS[:2000]:
        for i, (head, label) in enumerate(zip(pair.heads, pair.labels, strict=True), start=1):
            labels[label] += 1
            far[label] += abs(head - i) > 1
    for relation in ("nsubj", "dobj", "amod", "advmod"):
        assert labels[relation] >= 300
    assert far["nsubj"] / labels["nsubj"] > 0.3
    assert far["amod"] / labels["amod"] > 0.1


def test_words_are_some_300_and_zipf_like_with_a_rare_tail():
    pairs = toy_pairs("train")
    counts = Counter(word.lower() for pair in pairs for word in pair.words if word.isalpha())
    assert 250 <= len(counts) <= 350
    ranked = [n for _, n in counts.most_common()]
    assert ranked[-1] >= 10  # never too rare to be learnt
    assert sum(n < 200 for n in ranked) > 50
    slope = np.polyfit(np.log(np.arange(1, len(ranked) + 1)), np.log(ranked), 1)[0]
    assert -1.3 < slope < -0.7
    lengths = [len(pair.words) for pair in pairs]
    assert 7 <= sum(lengths) / len(lengths) <= 9
    assert max(lengths) <= LONGEST_SOURCE


def test_splits_share_no_sentence_and_repeat_none():
    corpus = load_corpus("toy")
    assert all(corpus.split(s).sources == [pair.source for pair in toy_pairs(s)] for s in SPLITS)
    texts = [corpus.train, corpus.valid, corpus.test]
    assert [len(text.sources) for text in texts] == [16000, 500, 1000]
    assert len({source for text in texts for source in text.sources}) == 17500


def test_the_same_seed_gives_the_same_pairs_everywhere():
    text = "\n".join(map(repr, generate(1000, 1)))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "e9740f4ed62cc773f3df9bfcf5af815c81fab0eb4f639a4fe7ee7e46a03acf96"
    assert generate(11, 1) == generate(101, 1)[:11]
    assert generate(11, 1) != generate(11, 2)


def test_what_is_kept_is_what_was_drawn_and_what_is_damaged_is_drawn_again(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path))
    drawn, count = [], generate
    monkeypatch.setattr(toy, "generate", lambda *of: drawn.append(of) or count(*of))
    expected = count(11, 3)
    assert [drawn_once(11, 3), drawn_once(11, 3)] == [expected, expected]
    assert drawn == [(11, 3)]
    (path,) = tmp_path.rglob("*.json")
    for damaged in (b'[["torn', b"[1, 2]", b"[]", b'[["a", "b", ["c"], [0], ["d"], ["e"], 5]]'):
        path.write_bytes(damaged)
        assert drawn_once(11, 3) == expected
    assert len(drawn) == 5
    assert drawn_once(11, 4) == count(11, 4), "another seed"


def test_other_languages_are_refused_in_words():
    with pytest.raises(DataError, match="en-de, got de-en"):
        toy_corpus(src="de", tgt="en")
