"""Syntactic heads against loops over sentences, words and heads, and on attention made by hand."""

import random
from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
import torch

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.syntax import DIRECTIONS, PAPER_LABELS, Relation, Syntax, bootstrap, clear_name
from headgates.data.batch import collate
from headgates.data.conllu import Tree
from headgates.gates import HeadSite
from tests.worlds.one_by_one import VOCAB, in_batches, looks, random_model
from tests.worlds.seen_attention import seen_attention

DOWN, UP = DIRECTIONS
Pieces = list[int | None]


def random_text() -> tuple[list, dict[int, Tree], dict[int, Pieces]]:
    """Pairs, and their sources' trees and pieces: one to three pieces a word, some words without, and now and
    then a piece without a word."""
    rng, texts, trees, words = random.Random(1), [], {}, {}
    for pair in range(41):
        size = rng.randint(5, 13)
        heads = [
            rng.choice([other for other in range(size + 1) if other != word]) for word in range(1, size + 1)
        ]
        labels = rng.choices([*PAPER_LABELS, "det", "ROOT"], k=size)
        trees[pair] = Tree(("word",) * size, tuple(heads), tuple(labels), "")
        pieces = [word for word in range(size) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        words[pair] = [*pieces, *([None] if rng.random() < 0.3 else [])]
        texts.append(([rng.randrange(4, VOCAB) for _ in words[pair]], [7]))
    return texts, trees, words


TEXTS, TREES, WORDS = random_text()


@pytest.fixture(scope="module")
def weights() -> dict:
    """Site, head, pair -> query -> the weights of the keys."""
    found = defaultdict(dict)
    for look in looks(random_model(), TEXTS):
        if "enc-self" in look.site:
            found[look.site, look.head, look.pair][look.query] = look.keys
    return found


def observed(trees, texts=TEXTS, words=WORDS, labels=PAPER_LABELS, **options) -> Syntax:
    syntax = Syntax(trees, words, labels, samples=31)
    observe_attention(random_model(), in_batches(texts, 7), [syntax], **options)
    return syntax


def slow(weights: dict, label: str, direction: str) -> tuple[int, dict, Counter]:
    """n, right answers by (site, head), right answers by offset; by loops over everything."""
    n, right, offsets = 0, Counter(), Counter()
    for (site, head, pair), rows in weights.items():
        tree, pieces = TREES[pair], WORDS[pair]
        own = {w: [p for p, word in enumerate(pieces) if word == w] for w in {*pieces} - {None}}
        arcs = [(w, h - 1) for w, h in enumerate(tree.heads) if h and tree.labels[w] == label]
        for query in own:
            gold = [arc[direction == UP] for arc in arcs if arc[direction == DOWN] == query]
            if gold := [w for w in gold if w in own]:
                to_word = {w: sum(rows[p][q] for p in own[query] for q in own[w]) for w in own}
                right[site, head] += max(to_word, key=to_word.__getitem__) in gold
                if (site, head) == ("encoder.0.enc-self", 0):
                    n += 1
                    offsets.update(other - query for other in gold)
    return n, right, offsets


def test_accuracy_and_baseline_equal_loops_over_sentences_words_and_heads(weights):
    syntax = observed(TREES)
    rows, maps, gains = syntax.rows(), syntax.accuracies(), defaultdict(list)
    for label, direction in product(PAPER_LABELS, DIRECTIONS):
        n, right, offsets = slow(weights, label, direction)
        assert n > 11
        of_heads = [row for row in rows if (row["label"], row["direction"]) == (label, direction)]
        assert len(of_heads) == syntax.gain().heads_total
        for row in of_heads:
            at = row["site"], row["head"]
            assert (row["n"], row["accuracy"]) == (n, pytest.approx(right[at] / n))
            assert row["baseline"] == pytest.approx(max(offsets.values()) / sum(offsets.values()))
            assert offsets[row["offset"]] == max(offsets.values())
            assert float(maps[f"{label} {direction}"][at[0]][at[1]]) == row["accuracy"]
            gains[at].append(row["accuracy"] - row["baseline"])
            assert row["syntactic"] == (gains[at][-1] >= 0.1)
        best = next(row for row in syntax.best() if (row["label"], row["direction"]) == (label, direction))
        assert best["accuracy"] == max(row["accuracy"] for row in of_heads)
    for (site, head), of_relations in gains.items():
        assert float(syntax.gain()[site][head]) == pytest.approx(max(of_relations))
        assert bool(syntax.syntactic()[site][head]) == (max(of_relations) >= 0.1)


def test_sentences_without_a_tree_are_left_out_and_counted():
    trees = {pair: tree for pair, tree in TREES.items() if pair < 11}
    syntax = observed(trees)
    assert syntax.left_out["sentences without a tree that fits"] == len(TREES) - 11
    assert syntax.rows() == observed(trees, TEXTS[:11]).rows()


# --- small trees


def one(words: str, heads: str, labels: str, pieces: Pieces, wanted: list[str], **options) -> Syntax:
    tree = Tree(tuple(words.split()), tuple(map(int, heads.split())), tuple(labels.split()), words)
    return observed({0: tree}, [([5] * len(pieces), [7])], {0: pieces}, wanted, **options)


def test_the_nearest_and_then_the_earlier_of_equally_good_offsets_is_taken():
    labels = "ROOT x nsubj nsubj conj nsubj"  # offsets: -2, 1, -1
    _, up = one("v a b c v d", "0 1 1 5 1 5", labels, [*range(6)], ["nsubj"]).relations()
    assert (up.direction, up.offset, up.baseline) == (UP, -1, pytest.approx(1 / 3))


def test_ten_points_above_the_baseline_count_and_less_does_not():
    relation = Relation("nsubj", UP, np.array([0.7, 0.65]), None, None, baseline=0.6)  # 0.7 - 0.6 < 0.1
    assert relation.syntactic.tolist() == [True, False]


def test_words_without_a_piece_are_left_out_and_counted():
    syntax = one("small cat sees dogs", "2 3 0 3", "amod nsubj ROOT dobj", [0, 1, 2, None], ["nsubj", "dobj"])
    assert syntax.left_out == {"queries of words without a piece": 2}
    for row in syntax.rows()[len(syntax.rows()) // 2 :]:
        assert row["accuracy"] is row["baseline"] is row["offset"] is row["gain_low"] is None
        assert (row["n"], row["syntactic"]) == (0, False)
    assert list(syntax.accuracies()) == [f"nsubj {direction}" for direction in DIRECTIONS]
    assert syntax.gain().flat().isfinite().all()


def test_a_head_that_looks_at_the_end_alone_looks_at_no_word():
    syntax = Syntax({0: Tree(("a", "b"), (2, 0), ("nsubj", "ROOT"), "")}, {0: [0, 1]}, ["nsubj"])
    weights = {HeadSite.at("enc-self", 0, 1): torch.tensor([[0.0, 0.0, 1.0]] * 3)[None, None]}
    syntax.add(seen_attention(collate([([5, 5], [7])], [0], 1), weights))
    assert [row["accuracy"] for row in syntax.rows()] == [0, 0]


def test_the_interval_is_that_of_resampled_sentences_whose_best_offset_is_found_anew():
    rng = np.random.default_rng(3)
    n = rng.integers(1, 4, (23, 1))
    sums = np.c_[rng.integers(0, n + 1, (23, 8)), n]  # 5 heads, 3 offsets, n
    found = bootstrap(sums, 5, samples=97, seed=11)
    totals = sums[np.random.default_rng(11).integers(23, size=(97, 23))].sum(1)
    arcs = totals[:, 5:8]
    gains = totals[:, :5] / totals[:, 8:] - arcs.max(1, keepdims=True) / arcs.sum(1, keepdims=True)
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
    for label, kinds, message in (
        ("nsbj", None, "label 'nsbj'; did you mean 'nsubj'"),
        ("nsubj", ["cross"], "no enc-self attention was observed; add enc-self to the kinds"),
    ):
        with pytest.raises(ValueError, match=message):
            one("a b", "2 0", "nsubj ROOT", [0, 1], [label], kinds=kinds).rows()
    with pytest.raises(ValueError, match=r"has the label 'advmod'; known: none"):
        Syntax({}, {}, ["advmod"])
    with pytest.raises(ValueError, match="sentence 0 of the split has 1 pieces and its map of words 2"):
        observed(TREES, [([5], [7])], {0: [0, 0]})


def test_the_hint_at_an_unknown_label_lists_the_labels_of_the_parses():
    with pytest.raises(ValueError, match=r"has the label 'xyz'; known: nsubj:pass, root"):
        one("a b", "2 0", "nsubj:pass root", [0, 1], ["xyz"])
