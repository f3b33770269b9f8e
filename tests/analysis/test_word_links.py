"""Links between words that go together, beside those that were planted."""

from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest

from headgates.analysis.word_links import EM_STEPS, expected_links, word_links
from headgates.data.toy import toy_pairs


def test_links_of_words_that_go_together_are_those_that_were_planted():
    pairs, source, target = toy_pairs("valid")[:300], {}, {}
    ids = [
        (
            [source.setdefault(word, len(source)) for word in pair.words],
            [target.setdefault(word, len(target)) for word in pair.target_words],
        )
        for pair in pairs
    ]
    found = word_links(ids)
    right = sum(len({*links} & {*pair.alignment}) for links, pair in zip(found, pairs, strict=True))
    assert right / sum(map(len, found)) > 0.95
    assert right / sum(len(pair.alignment) for pair in pairs) > 0.85


def test_words_of_a_language_with_the_other_order_are_linked_across_places():
    pairs = [(words, [10 + word for word in reversed(words)]) for words in combinations(range(6), 3)]
    assert word_links(pairs) == [[(0, 2), (1, 1), (2, 0)]] * 20


def test_a_word_said_twice_is_linked_to_its_own_and_empty_sentences_have_no_links():
    assert word_links([([7, 8, 7], [17, 18, 17]), ([], [17]), ([], [])]) == [[(0, 0), (1, 1), (2, 2)], [], []]
    assert word_links([]) == []
    assert [len(each) for each in expected_links([])] == [0, 0]


def by_loops(sources, targets):
    """Expected links by (source piece, target piece), as the paper writes them."""
    t = defaultdict(lambda: 1.0)
    for _ in range(EM_STEPS):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for f in target:
                whole = sum(t[e, f] for e in source)
                for e in source:
                    counts[e, f] += t[e, f] / whole
                    totals[e] += t[e, f] / whole
        t = {(e, f): count / totals[e] for (e, f), count in counts.items()}
    return counts


def test_links_are_those_of_a_loop_over_sentences():
    luck = np.random.default_rng(1)
    sources = [luck.integers(0, 5, luck.integers(1, 5)).tolist() for _ in range(30)]
    targets = [luck.integers(0, 6, luck.integers(1, 5)).tolist() for _ in range(30)]
    pairs = [([], [2]), *zip(sources, targets, strict=True), ([3], [])]
    kinds, counts = expected_links(pairs)
    found = dict(zip(map(tuple, kinds.tolist()), counts.tolist(), strict=True))
    assert found == pytest.approx(dict(by_loops(sources, targets)))


def test_a_piece_is_linked_most_with_what_it_is_translated_into_though_others_come_as_often():
    luck = np.random.default_rng(2)
    sources = [[0, *luck.integers(1, 20, 4)] for _ in range(400)]  # 0 comes with every other piece
    targets = [luck.permutation([50 + piece for piece in source]).tolist() for source in sources]
    kinds, counts = expected_links([*zip(sources, targets, strict=True)])
    for piece in range(20):
        own = kinds[:, 0] == piece
        assert kinds[own][counts[own].argmax(), 1] == 50 + piece
