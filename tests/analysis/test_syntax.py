"""Syntactic heads against loops over sentences, words and heads, and on attention made by hand."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from headgates.analysis.attention_pass import AttentionBatch
from headgates.analysis.syntax import DIRECTIONS, LABELS, Syntax, bootstrap, clear_name
from headgates.data.batch import Batch, collate
from headgates.data.conllu import Tree
from headgates.gates import HeadSite
from tests.worlds.seen_attention import seen_attention

FIRST, SECOND = HeadSite.at("enc-self", 0, 3), HeadSite.at("enc-self", 1, 2)
DOWN, UP = DIRECTIONS
Pieces = list[int | None]


def tree_of(words: str, heads: str, labels: str) -> Tree:
    return Tree(tuple(words.split()), tuple(map(int, heads.split())), tuple(labels.split()), words)


def random_text() -> tuple[dict[int, Tree], dict[int, Pieces]]:
    """41 sentences of 1 to 13 words, numbered with gaps: one to three pieces a word, some words without, and
    now and then a piece without a word."""
    rng, trees, words = random.Random(1), {}, {}
    for pair in range(2, 125, 3):
        length = rng.choice([1, 2, 3, 5, 7, 11, 13])
        root = rng.randrange(length)
        heads = [
            0 if i == root else rng.choice([j for j in range(length) if j != i]) + 1 for i in range(length)
        ]
        labels = [rng.choice([*LABELS, "obj", "nsubj:pass", "det"]) if head else "ROOT" for head in heads]
        trees[pair] = Tree(tuple("abcdefghijklmnopq"[:length]), tuple(heads), tuple(labels), "")
        pieces: Pieces = [word for word in range(length) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        words[pair] = [*pieces, *([None] if rng.random() < 0.3 else [])] or [0]
    return trees, words


TREES, WORDS = random_text()


def batch_of(words: dict[int, Pieces], pairs: list[int]) -> Batch:
    return collate([([5] * len(words[pair]), [7]) for pair in pairs], pairs, 1)


def seen_by_batches(pairs: list[int], size: int) -> list[AttentionBatch]:
    """Random attention; every sentence has the same in whatever batch it stands."""
    made = []
    for start in range(0, len(pairs), size):
        batch = batch_of(WORDS, pairs[start : start + size])
        shape = batch.source.shape[1], batch.source.shape[1]
        weights = {site: torch.zeros(len(batch), site.heads, *shape) for site in (FIRST, SECOND)}
        for row, pair in enumerate(batch.index.tolist()):
            torch.manual_seed(pair)
            length = len(WORDS[pair]) + 1
            for each in weights.values():
                random = 3 * torch.randn(each.shape[1], length, length)
                each[row, :, :length, :length] = random.softmax(-1)
        made.append(seen_attention(batch, weights))
    return made


def collected(trees, words, seen: list[AttentionBatch], labels=LABELS, **options) -> Syntax:
    syntax = Syntax(trees, words, labels, **options)
    for one in seen:
        syntax.add(one)
    return syntax


def slow(seen: list[AttentionBatch], names: set[str], direction: str):
    """n, right answers by (site, head), right answers by offset; by loops over everything."""
    n, right, offsets = 0, Counter(), Counter()
    for one in seen:
        for row, pair in enumerate(one.batch.index.tolist()):
            tree, pieces = TREES[pair], WORDS[pair]
            own = {w: [p for p, word in enumerate(pieces) if word == w] for w in {*pieces} - {None}}
            arcs = [(w, h - 1) for w, h in enumerate(tree.heads) if h and tree.labels[w] in names]
            for query in own:
                gold = [arc[direction == UP] for arc in arcs if arc[direction == DOWN] == query]
                gold = [w for w in gold if w in own]
                n += bool(gold)
                offsets.update(other - query for other in gold)
                for site, head in product((FIRST, SECOND), range(3)) if gold else ():
                    if head < site.heads:
                        weights = one.weights[site][row, head]
                        to_word = {
                            w: np.mean([sum(float(weights[p, q]) for q in own[w]) for p in own[query]])
                            for w in own
                        }
                        right[site.name, head] += max(to_word, key=to_word.__getitem__) in gold
    return n, right, offsets


def test_accuracy_and_baseline_equal_loops_over_sentences_words_and_heads():
    seen = seen_by_batches(list(TREES), 7)
    syntax = collected(TREES, WORDS, seen)
    rows, maps = syntax.rows(), syntax.accuracies()
    assert len(rows) == len(LABELS) * len(DIRECTIONS) * (FIRST.heads + SECOND.heads)
    for label, direction in product(LABELS, DIRECTIONS):
        n, right, offsets = slow(seen, {"dobj", "obj"} if label == "dobj" else {label}, direction)
        assert n > 11
        for row in rows:
            if (row["label"], row["direction"]) == (label, direction):
                accuracy = right[row["site"], row["head"]] / n
                assert (row["n"], row["accuracy"]) == (n, pytest.approx(accuracy))
                assert row["baseline"] == pytest.approx(max(offsets.values()) / sum(offsets.values()))
                assert offsets[row["offset"]] == max(offsets.values())
                assert row["syntactic"] == (accuracy - row["baseline"] >= 0.1)
                assert float(maps[f"{label} {direction}"][row["site"]][row["head"]]) == row["accuracy"]


def test_sentences_without_a_tree_are_left_out_and_counted():
    some = {pair: tree for pair, tree in TREES.items() if pair % 2}
    syntax = collected(some, WORDS, seen_by_batches(list(TREES), 7), samples=31)
    assert syntax.left_out["sentences without a tree"] == len(TREES) - len(some)
    assert syntax.rows() == collected(some, WORDS, seen_by_batches(list(some), 5), samples=31).rows()


# --- attention made by hand: one piece a word but for `black`, which has two

TREE = tree_of("the small cat sees old black dogs", "3 3 4 0 7 7 4", "det amod nsubj ROOT amod amod dobj")
PIECES: Pieces = [0, 1, 2, 3, 4, 5, 5, 6]
ONE = HeadSite.at("enc-self", 0, 1)


def looking(
    targets: dict[int, int], tree: Tree = TREE, words: Pieces = PIECES, labels=("nsubj", "dobj", "amod")
) -> Syntax:
    """One head whose every piece looks at one piece: the given one, else the end of the sentence."""
    weights = torch.zeros(1, 1, len(words) + 1, len(words) + 1)
    for piece in range(len(words) + 1):
        weights[0, 0, piece, targets.get(piece, len(words))] = 1.0
    return collected(
        {0: tree}, {0: words}, [seen_attention(batch_of({0: words}, [0]), {ONE: weights})], labels
    )


def test_the_nearest_and_then_the_earlier_of_equally_good_offsets_is_taken():
    tree = tree_of("v a b c v d", "0 1 1 5 1 5", "ROOT x nsubj nsubj conj nsubj")  # offsets: -2, 1, -1
    row = looking({}, tree, [0, 1, 2, 3, 4, 5], ["nsubj"]).rows()[1]
    assert (row["direction"], row["offset"], row["baseline"]) == (UP, -1, pytest.approx(1 / 3))


def test_ten_points_above_the_baseline_count_and_less_does_not():
    """20 sentences of a subject before or after its verb: the best offset is right in 10, heads in 12 and
    11."""
    trees = [tree_of("a b", "2 0", "nsubj root"), tree_of("a b", "0 1", "root nsubj")] * 10
    words: dict[int, Pieces] = {i: [0, 1] for i in range(20)}
    weights = torch.zeros(20, 2, 3, 3)
    for i, tree in enumerate(trees):
        verb = tree.heads.index(0)
        for head, right in ((0, 12), (1, 11)):
            weights[i, head, 1 - verb, verb if i < right else 2] = 1.0
    seen = seen_attention(batch_of(words, list(range(20))), {HeadSite.at("enc-self", 0, 2): weights})
    syntax = collected(dict(enumerate(trees)), words, [seen], ["nsubj"])
    found = [(row["accuracy"], row["syntactic"]) for row in syntax.rows() if row["direction"] == UP]
    assert found == [(0.6, True), (0.55, False)]
    assert syntax.syntactic().flat().tolist() == [True, False]
    assert syntax.gain().flat().tolist() == pytest.approx([0.1, 0.05])
    assert syntax.best()[1]["head"] == 0


def test_words_without_a_piece_are_left_out_and_counted():
    syntax = looking({3: 2}, words=[0, 1, 2, 3, 4, 5, 5, None])  # the piece of dogs has no word
    rows = {(row["label"], row["direction"]): row for row in syntax.rows()}
    assert rows["nsubj", DOWN]["accuracy"] == 1
    assert [row["n"] for row in rows.values()] == [1, 1, 0, 0, 1, 1]
    assert syntax.left_out == {"queries of words without a piece": 5}
    empty = rows["dobj", UP]
    assert empty["accuracy"] is empty["baseline"] is empty["offset"] is empty["gain_low"] is None
    assert empty["syntactic"] is False
    assert f"dobj {UP}" not in syntax.accuracies()
    assert syntax.gain().flat().isfinite().all()


def test_the_interval_equals_resampling_in_a_loop():
    rng = np.random.default_rng(3)
    n = rng.integers(1, 4, 23)
    sums = np.concatenate([rng.integers(0, n[:, None] + 1, (23, 8)), n[:, None]], 1)  # 5 heads, 3 offsets, n
    found = bootstrap(sums, 5, samples=97, seed=11)
    gains = []
    for sampled in np.random.default_rng(11).integers(23, size=(97, 23)):
        *totals, queries = (sum(sums[i, column] for i in sampled) for column in range(9))
        gains.append([totals[head] / queries - max(totals[5:]) / sum(totals[5:]) for head in range(5)])
    np.testing.assert_allclose(found, np.quantile(gains, [0.025, 0.975], axis=0))


# --- names, and what is refused


@pytest.mark.parametrize(
    ("label", "word", "name"),
    [
        ("obj", "dogs", "dobj"),
        ("nsubj:outer", "dogs", "nsubj:outer"),
        ("advmod", "Not", "neg"),
        ("det", "not", "det"),
    ],
)
def test_a_subtype_is_a_relation_of_its_own_and_negations_are_no_adverbs(label, word, name):
    assert clear_name(label, word) == name


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="label 'nsbj'; did you mean 'nsubj'"):
        looking({}, labels=["nsubj", "nsbj"])
    with pytest.raises(ValueError, match=r"has the label 'advmod'; known: none"):
        Syntax({}, {}, ["advmod"])
    syntax = Syntax({0: TREE}, {0: PIECES}, ["nsubj"])
    cross = {HeadSite.at("cross", 0, 5): torch.ones(1, 5, 2, 9)}
    syntax.add(seen_attention(batch_of({0: PIECES}, [0]), cross))
    with pytest.raises(ValueError, match="no enc-self attention was observed; add enc-self to the kinds"):
        syntax.rows()
    with pytest.raises(ValueError, match="sentence 0 of the split has 7 pieces and its map of words 8"):
        syntax.add(seen_attention(batch_of({0: PIECES[:-1]}, [0]), {ONE: torch.ones(1, 1, 8, 8)}))
