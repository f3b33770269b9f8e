"""IBM's Model 1 against a loop over sentences, and on a language whose lexicon is known."""

from collections import defaultdict

import numpy as np
import pytest

from headgates.data.lexicon import EM_ROUNDS, expected_links


def by_loops(sources, targets):
    """Expected links by (source piece, target piece), as the paper writes them."""
    t = defaultdict(lambda: 1.0)
    for _ in range(1 + EM_ROUNDS):
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
    pairs, counts = expected_links([*sources, [], [3]], [*targets, [2], []])
    expected = by_loops(sources, targets)
    found = {(int(e), int(f)): count for (e, f), count in zip(pairs, counts, strict=True)}
    assert found == pytest.approx(dict(expected))


def test_a_piece_is_linked_most_with_what_it_is_translated_into_though_others_come_as_often():
    luck = np.random.default_rng(2)
    sources = [[0, *luck.integers(1, 20, 4)] for _ in range(400)]  # 0 comes with every other piece
    targets = [luck.permutation([50 + piece for piece in source]).tolist() for source in sources]
    pairs, counts = expected_links(sources, targets)
    for piece in range(20):
        own = pairs[:, 0] == piece
        assert pairs[own][counts[own].argmax(), 1] == 50 + piece


def test_no_text_has_no_links():
    for pairs, counts in (expected_links([], []), expected_links([[]], [[1]])):
        assert pairs.shape == (0, 2)
        assert counts.shape == (0,)
