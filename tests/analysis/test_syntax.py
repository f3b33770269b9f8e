"""Syntactic heads against loops over sentences, words and heads, and on attention made by hand."""

import math
import random
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch
from headgates.analysis.syntax import DIRECTIONS, LABELS, Syntax, bootstrap, word_attention
from headgates.data.batch import Batch, collate
from headgates.data.conllu import Tree
from headgates.gates import HeadSite
from tests.worlds.seen_attention import seen_attention

FIRST, SECOND, CROSS = (
    HeadSite.at("enc-self", 0, 3),
    HeadSite.at("enc-self", 1, 2),
    HeadSite.at("cross", 0, 5),
)
DOWN, UP = DIRECTIONS
Pieces = list[int | None]


def random_tree(rng: random.Random, length: int) -> Tree:
    root = rng.randrange(length)
    heads = tuple(
        0 if i == root else rng.choice([j for j in range(length) if j != i]) + 1 for i in range(length)
    )
    labels = tuple(
        "ROOT" if i == root else rng.choice([*LABELS, "obj", "nsubj:pass", "det"]) for i in range(length)
    )
    return Tree(tuple("abcdefghijklmnopq"[:length]), heads, labels, "")


def random_words(rng: random.Random, length: int) -> Pieces:
    """One to three pieces a word; some words have none, and now and then a piece has no word."""
    pieces: Pieces = []
    for word in range(length):
        pieces += [word] * rng.choice([0, 1, 1, 2, 3])
        if rng.random() < 0.05:
            pieces.append(None)
    return pieces or [0]


def batch_of(words: dict[int, Pieces], pairs: list[int]) -> Batch:
    return collate([([5] * len(words[pair]), [7]) for pair in pairs], pairs, 1)


def attention(batch: Batch, heads: int, seed: int) -> Tensor:
    """(B, H, S, S) random distributions over the keys that are no padding, as `record` gives them."""
    scores = 3 * torch.randn(
        len(batch), heads, *[batch.source.shape[1]] * 2, generator=torch.Generator().manual_seed(seed)
    )
    padding = batch.source == 0
    return torch.softmax(scores.masked_fill(padding[:, None, None, :], -math.inf), -1).masked_fill(
        padding[:, None, :, None], 0.0
    )


@pytest.fixture(scope="module")
def text() -> tuple[dict[int, Tree], dict[int, Pieces]]:
    """41 sentences of 1 to 13 words, numbered with gaps."""
    rng = random.Random(1)
    trees = {3 * i + 2: random_tree(rng, rng.choice([1, 2, 3, 5, 7, 11, 13])) for i in range(41)}
    return trees, {pair: random_words(rng, len(tree)) for pair, tree in trees.items()}


def seen_by_batches(words: dict[int, Pieces], pairs: list[int], size: int) -> list[AttentionBatch]:
    """Every sentence has the same attention in whatever batch it stands."""
    made = []
    for start in range(0, len(pairs), size):
        here = pairs[start : start + size]
        batch = batch_of(words, here)
        weights = {
            site: torch.zeros(len(here), site.heads, *[batch.source.shape[1]] * 2) for site in (FIRST, SECOND)
        }
        for row, pair in enumerate(here):
            alone = batch_of(words, [pair])
            length = alone.source.shape[1]
            for number, site in enumerate(weights):
                weights[site][row, :, :length, :length] = attention(
                    alone, site.heads, seed=2 * pair + number
                )[0]
        made.append(seen_attention(batch, weights))
    return made


def collected(trees, words, seen: list[AttentionBatch], labels=LABELS, **options) -> Syntax:
    syntax = Syntax(trees, words, labels, **options)
    for one in seen:
        syntax.add(one)
    return syntax


def slow(
    trees: dict[int, Tree],
    words: dict[int, Pieces],
    seen: list[AttentionBatch],
    label: str,
    names: set[str],
    direction: str,
):
    """n, right answers by (site, head), right answers by offset; by loops over everything."""
    n, right, offsets = 0, {}, {}
    for one in seen:
        for row, pair in enumerate(one.batch.index.tolist()):
            tree, pieces = trees[pair], words[pair]
            own = {w: [p for p, word in enumerate(pieces) if word == w] for w in range(len(tree))}
            for query in range(len(tree)):
                if direction == UP:
                    gold = (
                        [tree.heads[query] - 1] if tree.labels[query] in names and tree.heads[query] else []
                    )
                else:
                    gold = [
                        w for w in range(len(tree)) if tree.heads[w] == query + 1 and tree.labels[w] in names
                    ]
                gold = [w for w in gold if own[w]]
                if not own[query] or not gold:
                    continue
                n += 1
                for other in gold:
                    offsets[other - query] = offsets.get(other - query, 0) + 1
                for site, weights in one.weights.items():
                    for head in range(site.heads):
                        to_word = {
                            w: np.mean(
                                [sum(float(weights[row, head, p, q]) for q in own[w]) for p in own[query]]
                            )
                            for w in own
                            if own[w]
                        }
                        right[site, head] = right.get((site, head), 0) + (
                            max(to_word, key=to_word.__getitem__) in gold
                        )
    return n, right, offsets


def test_accuracy_and_baseline_equal_loops_over_sentences_words_and_heads(text):
    trees, words = text
    seen = seen_by_batches(words, list(trees), 7)
    rows = collected(trees, words, seen).rows()
    assert len(rows) == len(LABELS) * len(DIRECTIONS) * (FIRST.heads + SECOND.heads)
    by_key = {(row["label"], row["direction"], row["site"], row["head"]): row for row in rows}
    for label, direction in product(LABELS, DIRECTIONS):
        n, right, offsets = slow(
            trees, words, seen, label, {"dobj", "obj"} if label == "dobj" else {label}, direction
        )
        assert n > 11
        for (site, head), count in right.items():
            row = by_key[label, direction, site.name, head]
            assert row["n"] == n
            assert row["accuracy"] == pytest.approx(count / n)
            assert row["baseline"] == pytest.approx(max(offsets.values()) / sum(offsets.values()))
            assert offsets[row["offset"]] == max(offsets.values())
            assert row["syntactic"] == (count - max(offsets.values()) >= 0.1 * n)


def test_word_attention_is_the_sum_to_a_word_and_the_mean_from_it():
    weights = torch.tensor(
        [[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.0, 0.6, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]]
    )[None, None]
    member = torch.tensor(
        [[[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]]
    )  # two pieces, none, one; then the end
    expected = torch.tensor([[(0.3 + 0.6) / 2, 0.0, (0.3 + 0.2) / 2], [0.0, 0.0, 0.0], [0.6, 0.0, 0.1]])
    torch.testing.assert_close(word_attention(weights, member)[0, 0], expected)


# --- attention made by hand: "the small cat sees black dogs", one piece a word but for `black`, which has two

TREE = Tree(
    ("the", "small", "cat", "sees", "old", "black", "dogs"),
    (3, 3, 4, 0, 7, 7, 4),
    ("det", "amod", "nsubj", "ROOT", "amod", "amod", "dobj"),
    "the small cat sees old black dogs",
)
WORDS: Pieces = [0, 1, 2, 3, 4, 5, 5, 6]
END = len(WORDS)


def looking(targets: dict[int, int], tree: Tree = TREE, words: Pieces = WORDS, **options) -> Syntax:
    """One head whose every piece looks at one piece: the given one, else the end of the sentence."""
    batch = batch_of({0: words}, [0])
    weights = torch.zeros(1, 1, END + 1, END + 1)[:, :, : len(words) + 1, : len(words) + 1]
    for piece in range(len(words) + 1):
        weights[0, 0, piece, targets.get(piece, len(words))] = 1.0
    return collected(
        [tree],
        [words],
        [seen_attention(batch, {HeadSite.at("enc-self", 0, 1): weights})],
        **{"labels": ["nsubj", "dobj", "amod"], **options},
    )


def score(syntax: Syntax, label: str, direction: str) -> float:
    return float(syntax.accuracy(label, direction).flat()[0])


def test_a_head_that_looks_from_subjects_to_verbs_is_found_and_in_that_direction_only():
    syntax = looking({2: 3})
    assert score(syntax, "nsubj", UP) == 1.0
    assert score(syntax, "nsubj", DOWN) == score(syntax, "dobj", UP) == score(syntax, "amod", UP) == 0.0
    assert score(looking({3: 2}), "nsubj", DOWN) == 1.0


def test_a_noun_with_two_adjectives_is_one_query_and_either_is_right():
    for black in (5, 6):  # its two pieces
        syntax = looking({7: black})
        assert score(syntax, "amod", DOWN) == 0.5  # dogs is right; cat looks at the end
        assert syntax.best()[4]["n"] == 2
    assert score(looking({7: 4, 2: 1}), "amod", DOWN) == 1.0
    assert score(looking({7: 3, 2: 1}), "amod", DOWN) == 0.5


def test_a_word_of_two_pieces_asks_with_the_mean_of_them():
    assert score(looking({5: 7, 6: 7}), "amod", UP) == pytest.approx(1 / 3)
    assert score(looking({5: 7}), "amod", UP) == pytest.approx(
        1 / 3
    )  # the other piece looks at the end, which is no word
    assert score(looking({1: 0, 4: 0, 5: 7, 6: 0}), "amod", UP) == 0.0  # half and half: the first word has it


def test_the_nearest_and_then_the_earlier_of_equally_good_offsets_is_taken():
    words = ("v", "a", "b", "c", "v", "d")
    tree = Tree(words, (0, 1, 1, 5, 1, 5), ("ROOT", "x", "nsubj", "nsubj", "conj", "nsubj"), "")
    row = looking({}, tree, [0, 1, 2, 3, 4, 5], labels=["nsubj"]).rows()[1]  # offsets of the heads: -2, 1, -1
    assert (row["direction"], row["offset"], row["baseline"]) == (UP, -1, pytest.approx(1 / 3))


def test_a_head_that_looks_at_the_end_alone_is_right_nowhere():
    assert all(row["accuracy"] == 0.0 for row in looking({}).rows())


def test_ten_points_above_the_baseline_count_and_less_does_not():
    """20 sentences of a subject before or after its verb: the best offset is right in 10, heads in 12 and
    11."""
    before, after = (
        Tree(("a", "b"), heads, labels, "")
        for heads, labels in (((2, 0), ("nsubj", "root")), ((0, 1), ("root", "nsubj")))
    )
    trees = [before, after] * 10
    words = {i: [0, 1] for i in range(20)}
    batch = batch_of(words, list(range(20)))
    weights = torch.zeros(20, 2, 3, 3)
    for i, tree in enumerate(trees):
        verb = tree.heads.index(0)
        for head, right in ((0, 12), (1, 11)):
            weights[i, head, 1 - verb, verb if i < right else 2] = 1.0
    syntax = collected(
        trees, words, [seen_attention(batch, {HeadSite.at("enc-self", 0, 2): weights})], ["nsubj"]
    )
    up = [row for row in syntax.rows() if row["direction"] == UP]
    assert [(row["accuracy"], row["baseline"], row["syntactic"]) for row in up] == [
        (0.6, 0.5, True),
        (0.55, 0.5, False),
    ]
    assert syntax.syntactic().flat().tolist() == [True, False]
    assert syntax.gain().flat().tolist() == pytest.approx([0.1, 0.05])


def test_words_without_a_piece_are_left_out_and_counted():
    syntax = looking({3: 2}, words=[0, 1, 2, 3, 4, 5, 5, None])  # the piece of dogs has no word
    assert score(syntax, "nsubj", DOWN) == 1.0
    n = {(row["label"], row["direction"]): row["n"] for row in syntax.rows()}
    assert n == {
        ("nsubj", DOWN): 1,
        ("nsubj", UP): 1,
        ("dobj", DOWN): 0,
        ("dobj", UP): 0,
        ("amod", DOWN): 1,
        ("amod", UP): 1,
    }
    assert syntax.left_out == {"queries of words without a piece": 5}
    empty = next(row for row in syntax.rows() if row["label"] == "dobj")
    assert empty["accuracy"] is empty["baseline"] is empty["offset"] is empty["gain_low"] is None
    assert empty["syntactic"] is False


def test_sentences_without_a_tree_are_left_out_and_counted(text):
    trees, words = text
    some = {pair: tree for pair, tree in trees.items() if pair % 2}
    syntax = collected(some, words, seen_by_batches(words, list(trees), 7), samples=31)
    assert syntax.left_out["sentences without a tree"] == len(trees) - len(some)
    assert syntax.rows() == collected(some, words, seen_by_batches(words, list(some), 7), samples=31).rows()


# --- what is refused


def test_a_model_without_recorded_encoder_attention_is_refused():
    syntax = Syntax([TREE], [WORDS], ["nsubj"])
    syntax.add(seen_attention(batch_of({0: WORDS}, [0]), {CROSS: torch.ones(1, 5, 2, 9)}))
    with pytest.raises(
        ValueError,
        match="heads of the encoder, and no enc-self attention was observed; add enc-self to the kinds",
    ):
        syntax.rows()


def test_a_map_of_words_for_another_vocabulary_is_refused():
    syntax = Syntax({4: TREE}, {4: WORDS}, ["nsubj"])
    batch = batch_of({4: WORDS[:-1]}, [4])
    with pytest.raises(ValueError, match="sentence 4 of the split has 7 pieces and its map of words 8"):
        syntax.add(seen_attention(batch, {FIRST: attention(batch, FIRST.heads, 0)}))


def test_the_interval_equals_resampling_in_a_loop():
    rng = np.random.default_rng(3)
    n = rng.integers(1, 4, 23)
    right = rng.integers(0, n[:, None] + 1, (23, 5))
    positional = rng.integers(0, n[:, None] + 1, (23, 3))
    low, high = bootstrap(right, positional, n, samples=97, seed=11)
    draws = np.random.default_rng(11).integers(23, size=(97, 23))
    gains = []
    for drawn in draws:
        total = sum(n[i] for i in drawn)
        arcs = [sum(positional[i, o] for i in drawn) for o in range(3)]
        gains.append([sum(right[i, h] for i in drawn) / total - max(arcs) / sum(arcs) for h in range(5)])
    np.testing.assert_allclose(low, np.quantile(gains, 0.025, axis=0))
    np.testing.assert_allclose(high, np.quantile(gains, 0.975, axis=0))
