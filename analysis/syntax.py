"""Syntactic heads: how often a head of the encoder looks from a word to the one it is in a relation with.
Voita et al. 2019, 5.2.

For each relation and both directions: accuracy is the share of query words from which the head's largest
attention falls on a word that the relation leads to; a head is syntactic if that is at least 10 points above
the baseline, the share of the relation's arcs at its most frequent offset. An arc is counted whichever way
one looks along it, so both directions have one baseline, as in the paper's Table 1. What the paper leaves
open is settled here so:
    pieces      attention to a word is the sum over its pieces, from a word the mean over its pieces (Clark
                et al. 2019)
    keys        all words, the query itself included; the end of the sentence is none
    queries     counted once each: a noun with two adjectives is right with either (from head to dependent)
                words without a piece of their own are never looked at; a query whose own or whose partner's
                word is one is left out and counted
    labels      as spaCy's English ones (CLEAR); UD's obj and nsubj:pass are dobj and nsubjpass. Subtypes are
                labels of their own: nsubj is not nsubjpass. UD calls `not` an advmod, CLEAR and the paper's
                CoreNLP neg: here it is neg
    offset      in words, from the query; of arcs whose words all have pieces
Letters: B sentences, H heads, W words, S pieces and the end, Q queries, N sentences with a query, O
offsets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch
from headgates.analysis.extras import Extra
from headgates.analysis.significance import resample_chunks
from headgates.analysis.without_heads import heads_at
from headgates.gates import HeadMap, HeadSite
from headgates.gates.site_rule import nearest

if TYPE_CHECKING:
    import numpy as np
else:
    np = Extra("numpy")

PAPER_LABELS = ("nsubj", "dobj", "amod", "advmod")  # those of the paper
DIRECTIONS = ("head->dependent", "dependent->head")  # from the query to where it looks
MARGIN = 0.10  # above the best offset
SAMPLES = 1000  # of the bootstrap
CLEAR_NAMES = {  # UD's name -> CLEAR's, where both mean the same pairs of words
    "obj": "dobj",
    "nsubj:pass": "nsubjpass",
    "csubj:pass": "csubjpass",
    "aux:pass": "auxpass",
    "acl:relcl": "relcl",
    "root": "ROOT",
}


class DependencyTree(Protocol):
    """A dependency tree. heads: for each word the number of its head, from 1, or 0 for a root."""

    @property
    def words(self) -> tuple[str, ...]: ...
    @property
    def heads(self) -> tuple[int, ...]: ...
    @property
    def labels(self) -> tuple[str, ...]: ...


NEGATIONS = ("not", "n't", "n’t", "nt")


def clear_name(label: str, word: str) -> str:
    """The CLEAR name of a word's label, which may be UD's or CLEAR's."""
    if label == "advmod" and word.lower() in NEGATIONS:
        return "neg"
    return CLEAR_NAMES.get(label, label)


def queries(tree: DependencyTree, labels: Sequence[str]) -> dict[tuple[int, int], list[int]]:
    """Return for every (relation, query word) the words that it should look at, numbered from 0.

    labels: CLEAR names; the number of a relation is 2 * (number of its label) + (number of its direction)."""
    found: dict[tuple[int, int], list[int]] = {}
    for word, (head, label) in enumerate(
        zip(tree.heads, map(clear_name, tree.labels, tree.words), strict=True)
    ):
        if head and label in labels:
            relation = 2 * labels.index(label)
            found.setdefault((relation, head - 1), []).append(word)
            found.setdefault((relation + 1, word), []).append(head - 1)
    return found


def word_attention(weights: Tensor, member: Tensor) -> Tensor:
    """Return the attention between words (H, W, W), given weights (H, S, S) between pieces and member
    (W, S), which is 1 where a piece belongs to a word and 0 elsewhere."""
    return member / member.sum(1, keepdim=True).clamp_min(1) @ weights @ member.T


class Relation(NamedTuple):
    """The result for one label and direction. accuracy, low, high: (heads of all sites,); low and high bound
    accuracy - baseline. All are NaN without a query."""

    label: str
    direction: str
    accuracy: Any
    low: Any
    high: Any
    n: int = 0  # queries
    sentences: int = 0
    offset: int | None = None  # the best one, and how often it is right
    baseline: float | None = None

    @property
    def gain(self) -> Any:
        """(heads of all sites,) accuracy above the baseline."""
        return self.accuracy - (self.baseline or 0.0)

    @property
    def syntactic(self) -> Any:
        """(heads of all sites,) bool: at least MARGIN above the baseline; two shares that are 10 points apart
        may differ by a rounding less."""
        return self.gain >= MARGIN - 1e-9


class Syntax:
    """Collects where every head of the encoder looks from the words of the relations.

    trees and words (`word_of_piece` of each sentence's pieces): by the pair's number in its split; a pair
    without a tree is left out. labels: CLEAR's or UD's names. seed: of the bootstrap, which draws sentences.
    left_out counts what was not used, by reason. Raises ValueError for a label that no tree has."""

    def __init__(
        self,
        trees: Mapping[int, DependencyTree],
        words: Mapping[int, list[int | None]],
        labels: Sequence[str] = PAPER_LABELS,
        *,
        samples: int = SAMPLES,
        seed: int = 0,
    ) -> None:
        self.trees, self.words, self.samples, self.seed = trees, words, samples, seed
        self.labels = list(dict.fromkeys(CLEAR_NAMES.get(label, label) for label in labels))
        self.sites: list[HeadSite] = []
        self.left_out: Counter[str] = Counter()
        # of each relation's queries: the pair, the offsets in words of what is right, which heads look there
        self._asked: defaultdict[int, list[tuple[int, list[int], np.ndarray]]] = defaultdict(list)
        self._found: list[Relation] = []
        present = clear_labels(trees.values())
        for label in labels:
            if CLEAR_NAMES.get(label, label) not in present:
                own = sorted({each for tree in trees.values() for each in tree.labels})
                hint = nearest(label, own or ["none"])
                raise ValueError(f"no word of the parses has the label {label!r}{hint}")

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError where a map of words is not one of the batch's pieces."""
        sites = [site for site in attention.weights if site.kind == "enc-self"]
        if not sites:
            return
        self.sites, self._found = sites, []
        weights = torch.cat([attention.weights[site] for site in sites], 1).cpu()  # (B, heads of all, S, S)
        real = (attention.batch.source != attention.source_specials.padding).cpu()  # on either side
        for pair, own, each in zip(attention.batch.index.tolist(), real, weights, strict=True):
            if pair not in self.trees:
                self.left_out["sentences without a tree that fits"] += attention.run == 0
            else:
                self._add_sentence(pair, each[:, own][:, :, own])

    def _add_sentence(self, pair: int, weights: Tensor) -> None:
        tree, words = self.trees[pair], self.words[pair]
        if len(words) != (pieces := weights.shape[1] - 1):
            raise ValueError(
                f"sentence {pair} of the split has {pieces} pieces and its map of words "
                f"{len(words)}: expected the map of the same text and vocabulary"
            )
        member = torch.tensor([[own == word for own in [*words, None]] for word in range(len(tree.words))])
        # (heads of all, W) each
        most, where = (each.numpy() for each in word_attention(weights, member.float()).max(2))
        for (relation, word), others in queries(tree, self.labels).items():
            others = [other for other in others if other in words]
            if word in words and others:
                # where the largest is 0, the head sees the end of the sentence alone and looks at no word;
                # words without pieces get 0
                hits = (where[:, [word]] == others).any(1) & (most[:, word] > 0)
                self._asked[relation].append((pair, [other - word for other in others], hits))
            else:
                self.left_out["queries of words without a piece"] += 1

    def relations(self) -> list[Relation]:
        """Return the relations of every label, both directions of each. Raises ValueError where no attention
        of the encoder was added."""
        if not self.sites:
            raise ValueError(
                "syntactic heads are heads of the encoder, and no enc-self attention was observed; add "
                "enc-self to the kinds"
            )
        if not self._found:
            names = product(self.labels, DIRECTIONS)
            self._found = [self._relation(self._asked[number], *each) for number, each in enumerate(names)]
        return self._found

    def _relation(
        self, asked: list[tuple[int, list[int], np.ndarray]], label: str, direction: str
    ) -> Relation:
        heads = sum(site.heads for site in self.sites)
        if not asked:
            return Relation(label, direction, *np.full((3, heads), np.nan))
        pairs, offsets, hits = zip(*asked, strict=True)
        known = sorted({o for each in offsets for o in each}, key=lambda o: (abs(o), o))
        arcs = [[each.count(o) for o in known] for each in offsets]
        # sums within sentences, in the sentences' order, so that the batches' order does not matter
        names, sentence = np.unique(pairs, return_inverse=True)
        sums = np.zeros((len(names), heads + len(known) + 1))
        np.add.at(sums, sentence, np.c_[hits, arcs, np.ones(len(asked))])
        *total, n = sums.sum(0)
        best = int(np.argmax(total[heads:]))
        low, high = bootstrap(sums, heads, samples=self.samples, seed=self.seed)
        return Relation(
            label,
            direction,
            np.divide(total[:heads], n),
            low,
            high,
            n=len(asked),
            sentences=len(names),
            offset=known[best],
            baseline=float(total[heads + best] / sum(total[heads:])),
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every label, direction and head: its accuracy, the baseline with its offset, the
        95% interval of their difference, the numbers of queries (n) and sentences, and whether it is
        syntactic. Without a query the first numbers are None."""
        rows, heads = [], heads_at(self.sites)
        for relation in self.relations():
            of_heads = relation.accuracy, relation.low, relation.high
            for i, (site, head) in enumerate(heads):
                accuracy, low, high = (float(each[i]) if relation.n else None for each in of_heads)
                rows.append(
                    {
                        "label": relation.label,
                        "direction": relation.direction,
                        **site.row(head),
                        "accuracy": accuracy,
                        "baseline": relation.baseline,
                        "offset": relation.offset,
                        "gain_low": low,
                        "gain_high": high,
                        "n": relation.n,
                        "sentences": relation.sentences,
                        "syntactic": bool(relation.syntactic[i]),
                    }
                )
        return rows

    def best(self) -> list[dict[str, Any]]:
        """Return the row of the most accurate head for each label and direction, as in the paper's Table
        1."""
        by_relation = groupby(self.rows(), key=itemgetter("label", "direction"))
        return [max(rows, key=lambda row: row["accuracy"] or 0.0) for _, rows in by_relation]

    def accuracies(self) -> dict[str, HeadMap]:
        """Return the accuracy of every head by the name of the relation, of those that have a query."""
        return {f"{r.label} {r.direction}": self._map(r.accuracy) for r in self.relations() if r.n}

    def gain(self) -> HeadMap:
        """Each head's largest accuracy above the baseline over all relations, in [-1, 1]; NaN where none has
        a query."""
        return self._map(np.fmax.reduce([r.gain for r in self.relations()]))

    def syntactic(self) -> HeadMap:
        """True where a head is syntactic for any relation."""
        return self._map(np.any([r.syntactic for r in self.relations()], axis=0))

    def _map(self, flat: np.ndarray) -> HeadMap:
        rows = torch.as_tensor(flat).split([site.heads for site in self.sites])
        return HeadMap(dict(zip(self.sites, rows, strict=True)))


def clear_labels(trees: Iterable[DependencyTree]) -> set[str]:
    """The CLEAR names of all labels of these trees."""
    return {clear_name(*pair) for tree in trees for pair in zip(tree.labels, tree.words, strict=True)}


def bootstrap(sums: np.ndarray, heads: int, *, samples: int, seed: int) -> np.ndarray:
    """Return the 2.5% and 97.5% quantiles (2, H) of accuracy - baseline over samples of N sentences
    with replacement.

    sums (N, H + O + 1): a sentence's right answers of each head, its arcs at each offset, its queries. The
    best offset is found anew in each sample, as it was in the whole."""
    gains = []
    for counts in resample_chunks(len(sums), samples, seed):
        totals = counts @ sums
        arcs = totals[:, heads:-1]
        gains.append(totals[:, :heads] / totals[:, -1:] - (arcs.max(axis=1) / arcs.sum(axis=1))[:, None])
    return np.quantile(np.concatenate(gains), [0.025, 0.975], axis=0)
