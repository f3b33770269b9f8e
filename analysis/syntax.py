"""Syntactic heads: how often a head of the encoder looks from a word to the one it is in a relation with.
Voita et al. 2019, 5.2.

For each relation and both directions: accuracy is the share of query words from which the head's largest
attention falls on a word that the relation leads to; a head is syntactic if that is at least 10 points above
the baseline, the share of the relation's arcs at its most frequent offset. An arc is counted whichever way
one looks along it, so both directions have one baseline, as in the paper's Table 1. What the paper leaves
open is settled here so:
    pieces      attention to a word is the sum over its pieces, from a word the mean over its pieces (Clark et
    al. 2019)
    keys        all words, the query itself included; the end of the sentence is none
    queries     counted once each: a noun with two adjectives is right with either (from head to dependent)
    words without a piece of their own are never looked at; a query whose own or whose partner's word is one
    is left out and counted
    labels      as spaCy's English ones (CLEAR); UD's obj and nsubj:pass are dobj and nsubjpass. Subtypes are
    labels of their own: nsubj is
                not nsubjpass. UD calls `not` an advmod, CLEAR and the paper's CoreNLP neg: here it is neg
    offset      in words, from the query; of arcs whose words all have pieces
Letters: B sentences, H heads, W words, S pieces and the end, Q queries, N sentences with a query, O
offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch
from headgates.analysis.extras import Extra
from headgates.gates import HeadMap, HeadSite
from headgates.gates.site_rule import nearest

if TYPE_CHECKING:
    import numpy as np
else:
    np = Extra("numpy")

LABELS = ("nsubj", "dobj", "amod", "advmod")  # those of the paper
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


class Tree(Protocol):
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


def queries(tree: Tree, labels: Sequence[str]) -> dict[tuple[int, int], list[int]]:
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
    """Return the attention between words (B, H, W, W), given weights (B, H, S, S) between pieces and member
    (B, W, S), which is 1 where a piece belongs to a word and 0 elsewhere."""
    mean = member / member.sum(2, keepdim=True).clamp_min(1)
    return mean[:, None] @ weights @ member[:, None].transpose(2, 3)


@dataclass(frozen=True)
class Relation:
    """The result for one label and direction. accuracy, low, high: (heads of all sites,); low and high bound
    accuracy - baseline."""

    label: str
    direction: str
    n: int  # queries
    sentences: int
    offset: int | None  # the best one, and how often it is right
    baseline: float
    accuracy: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Syntax:
    """Collects where every head of the encoder looks from the words of the relations.

    trees and words (`word_of_piece` of each sentence's pieces): by the pair's number in its split; a pair
    without a tree is left out. labels: CLEAR's or UD's names. seed: of the bootstrap, which draws sentences.
    left_out counts what was not used, by reason. Raises ValueError for a label that no tree has."""

    def __init__(
        self,
        trees: Sequence[Tree] | Mapping[int, Tree],
        words: Sequence[list[int | None]] | Mapping[int, list[int | None]],
        labels: Sequence[str] = LABELS,
        *,
        samples: int = SAMPLES,
        seed: int = 0,
    ) -> None:
        self.trees: dict[int, Tree] = dict(trees) if isinstance(trees, Mapping) else dict(enumerate(trees))
        self.words: dict[int, list[int | None]] = (
            dict(words) if isinstance(words, Mapping) else dict(enumerate(words))
        )
        assert self.trees.keys() <= self.words.keys()
        self.labels = list(dict.fromkeys(CLEAR_NAMES.get(label, label) for label in labels))
        self.samples, self.seed = samples, seed
        self.sites: list[HeadSite] = []
        self.left_out: Counter[str] = Counter()
        self._queries: list[
            tuple[int, int, list[int]]
        ] = []  # relation, pair, offsets in words of what is right
        self._hits: list[np.ndarray] = []  # of each batch (Q, heads of all sites) bool
        self._found: list[Relation] | None = None
        check_labels(labels, self.trees.values())

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError where a map of words is not one of the batch's pieces."""
        sites = [site for site in attention.weights if site.kind == "enc-self"]
        if not sites:
            return
        assert sites == (self.sites or sites)  # one model throughout
        self.sites, self._found = sites, None
        source, pairs = attention.batch.source.cpu(), attention.batch.index.tolist()
        member, asked = self._prepare(source != attention.source_specials.padding, pairs)
        if not asked:
            return
        row, _, query, _ = zip(*asked, strict=True)
        gold = torch.zeros(len(asked), member.shape[1], dtype=torch.bool)  # (Q, W)
        for number, (_, _, _, words) in enumerate(asked):
            gold[number, words] = True
        device = attention.weights[sites[0]].device
        member, gold, at, word = (
            member.to(device),
            gold.to(device),
            torch.tensor(row, device=device),
            torch.tensor(query, device=device),
        )
        hits = []
        for site in sites:
            most, where = word_attention(attention.weights[site].float(), member).max(3)  # (B, H, W)
            # where the largest is 0, the head sees the end of the sentence alone and looks at no word; words
            # without pieces get 0
            hits.append(gold.gather(1, where[at, :, word]) & (most[at, :, word] > 0))  # (Q, H)
        self._hits.append(torch.cat(hits, dim=1).cpu().numpy())
        self._queries += [
            (relation, pairs[row], [other - word for other in words]) for row, relation, word, words in asked
        ]

    def _prepare(
        self, real: Tensor, pairs: list[int]
    ) -> tuple[Tensor, list[tuple[int, int, int, list[int]]]]:
        """Return `member` (B, W, S) of a batch, and its queries: row, relation, query word, words to look at.
        real (B, S): no padding."""
        lengths = real.sum(1).tolist()
        asked: list[tuple[int, int, int, list[int]]] = []
        cells: list[tuple[int, int, int]] = []
        for row, pair in enumerate(pairs):
            tree = self.trees.get(pair)
            if tree is None:
                self.left_out["sentences without a tree"] += 1
                continue
            words = self.words[pair]
            if len(words) != lengths[row] - 1:
                sizes = f"{lengths[row] - 1} pieces and its map of words {len(words)}"
                raise ValueError(
                    f"sentence {pair} of the split has {sizes}: expected the map of the same text and "
                    "vocabulary"
                )
            cells += [(row, word, piece) for piece, word in enumerate(words) if word is not None]
            there = set(words)
            for (relation, query), others in queries(tree, self.labels).items():
                others = [word for word in others if word in there]
                if query in there and others:
                    asked.append((row, relation, query, others))
                else:
                    self.left_out["queries of words without a piece"] += 1
        widest = max((len(self.trees[pair].words) for pair in pairs if pair in self.trees), default=0)
        member = torch.zeros(len(real), widest, real.shape[1])
        if cells:
            member[tuple(torch.tensor(cells).T)] = 1.0
        return member, asked

    def relations(self) -> list[Relation]:
        """Return the relations of every label, both directions of each. Raises ValueError where no attention
        of the encoder was added."""
        if not self.sites:
            raise ValueError(
                "syntactic heads are heads of the encoder, and no enc-self attention was observed; add "
                "enc-self to the kinds"
            )
        if self._found is None:
            self._found = [
                self._relation(number, *names)
                for number, names in enumerate(product(self.labels, DIRECTIONS))
            ]
        return self._found

    def _relation(self, number: int, label: str, direction: str) -> Relation:
        chosen = [query[0] == number for query in self._queries]
        asked = [query for query in self._queries if query[0] == number]
        if not asked:
            nothing = np.full(sum(site.heads for site in self.sites), np.nan)
            return Relation(label, direction, 0, 0, None, float("nan"), nothing, nothing, nothing)
        hits = np.concatenate(self._hits)[chosen]
        offsets = [row for _, _, row in asked]
        # sums within sentences, in the sentences' order, so that the batches' order does not matter
        names, sentence = np.unique([pair for _, pair, _ in asked], return_inverse=True)
        known = sorted(
            {offset for row in offsets for offset in row}, key=lambda offset: (abs(offset), offset)
        )
        column = {offset: i for i, offset in enumerate(known)}
        right = np.zeros((len(names), hits.shape[1]))
        np.add.at(right, sentence, hits)
        positional = np.zeros((len(names), len(known)))
        flat = [(i, column[offset]) for i, row in zip(sentence, offsets, strict=True) for offset in row]
        np.add.at(positional, tuple(np.array(flat).T), 1)
        n = np.bincount(sentence)
        totals = positional.sum(0)
        low, high = bootstrap(right, positional, n, samples=self.samples, seed=self.seed)
        return Relation(
            label=label,
            direction=direction,
            n=len(hits),
            sentences=len(names),
            offset=known[int(totals.argmax())],
            baseline=float(totals.max() / totals.sum()),
            accuracy=right.sum(0) / len(hits),
            low=low,
            high=high,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every label, direction and head: its accuracy, the baseline with its offset, the
        95% interval of their difference, the numbers of queries (n) and sentences, and whether it is
        syntactic. Without a query the
        first numbers are None."""
        table = []
        for relation in self.relations():
            asked = relation.n > 0
            heads = self._map(relation.accuracy).rows()
            for head, low, high in zip(heads, relation.low, relation.high, strict=True):
                accuracy = head.pop("value")
                table.append(
                    {
                        "label": relation.label,
                        "direction": relation.direction,
                        **head,
                        "accuracy": accuracy if asked else None,
                        "baseline": relation.baseline if asked else None,
                        "offset": relation.offset,
                        "gain_low": float(low) if asked else None,
                        "gain_high": float(high) if asked else None,
                        "n": relation.n,
                        "sentences": relation.sentences,
                        "syntactic": bool(above(accuracy, relation.baseline)),
                    }
                )
        return table

    def best(self) -> list[dict[str, Any]]:
        """Return the row of the most accurate head for each label and direction, as in the paper's Table
        1."""
        by_relation = groupby(self.rows(), key=itemgetter("label", "direction"))
        return [max(rows, key=lambda row: row["accuracy"] or 0.0) for _, rows in by_relation]

    def accuracy(self, label: str, direction: str) -> HeadMap:
        """Return the accuracy of every head in one relation; NaN where it has no query. Raises ValueError at
        an unknown relation."""
        name = CLEAR_NAMES.get(label, label)
        found = [r for r in self.relations() if (r.label, r.direction) == (name, direction)]
        if not found:
            raise ValueError(
                f"no relation {label!r}, {direction!r}; there are {', '.join(self.labels)}, each "
                f"{' and '.join(DIRECTIONS)}"
            )
        return self._map(found[0].accuracy)

    def gain(self) -> HeadMap:
        """Each head's largest accuracy above the baseline over all relations, in [-1, 1]; NaN where none has
        a query."""
        asked = [r.accuracy - r.baseline for r in self.relations() if r.n]
        return self._map(np.max(asked, axis=0) if asked else self.relations()[0].accuracy)

    def syntactic(self) -> HeadMap:
        """True where a head is syntactic for any relation."""
        return self._map(np.any([above(r.accuracy, r.baseline) for r in self.relations()], axis=0))

    def _map(self, flat: np.ndarray) -> HeadMap:
        rows = torch.as_tensor(flat).split([site.heads for site in self.sites])
        return HeadMap(dict(zip(self.sites, rows, strict=True)))


def above(accuracy: Any, baseline: float) -> Any:
    """Whether accuracy is at least MARGIN above the baseline; two shares that are 10 points apart may differ
    by a rounding less."""
    return accuracy - baseline >= MARGIN - 1e-9


def check_labels(labels: Sequence[str], trees: Iterable[Tree]) -> None:
    """Raises ValueError, which lists the labels that there are, at a label that no word of the trees has."""
    pairs = {
        (label, clear_name(label, word))
        for tree in trees
        for label, word in zip(tree.labels, tree.words, strict=True)
    }
    present, clear_names = sorted({label for label, _ in pairs}), {name for _, name in pairs}
    for label in labels:
        if CLEAR_NAMES.get(label, label) not in clear_names:
            raise ValueError(
                f"no word of the parses has the label {label!r}{nearest(label, present or ['none'])}"
            )


def bootstrap(
    right: np.ndarray, positional: np.ndarray, n: np.ndarray, *, samples: int, seed: int
) -> np.ndarray:
    """Return the 2.5% and 97.5% quantiles (2, H) of accuracy - baseline over samples of N sentences drawn
    with replacement.

    right (N, H), positional (N, O) and n (N,) are a sentence's right answers of each head, its arcs at each
    offset and its queries. The best offset is found anew in each sample, as it was in the whole."""
    rng = np.random.default_rng(seed)
    sentences, heads = right.shape
    columns = np.concatenate([right, positional, n[:, None]], axis=1)
    step = max(1, 4_000_000 // sentences)  # samples at once
    gains = []
    for start in range(0, samples, step):
        size = min(step, samples - start)
        drawn = rng.integers(sentences, size=(size, sentences)) + sentences * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * sentences).reshape(size, sentences)
        sums = times @ columns  # (size, H + O + 1)
        arcs = sums[:, heads:-1]  # (size, O)
        gains.append(sums[:, :heads] / sums[:, -1:] - (arcs.max(axis=1) / arcs.sum(axis=1))[:, None])
    return np.quantile(np.concatenate(gains), [0.025, 0.975], axis=0)
