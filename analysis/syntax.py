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
from itertools import groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch
from headgates.analysis.extras import Extra
from headgates.analysis.significance import resample_chunks
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
    baseline: float = float("nan")

    @property
    def syntactic(self) -> Any:
        """(heads of all sites,) bool: at least MARGIN above the baseline; two shares that are 10 points apart
        may differ by a rounding less."""
        return self.accuracy - self.baseline >= MARGIN - 1e-9


class Syntax:
    """Collects where every head of the encoder looks from the words of the relations.

    trees and words (`word_of_piece` of each sentence's pieces): by the pair's number in its split; a pair
    without a tree is left out. labels: CLEAR's or UD's names. seed: of the bootstrap, which draws sentences.
    left_out counts what was not used, by reason. Raises ValueError for a label that no tree has."""

    def __init__(
        self,
        trees: Mapping[int, Tree],
        words: Mapping[int, list[int | None]],
        labels: Sequence[str] = LABELS,
        *,
        samples: int = SAMPLES,
        seed: int = 0,
    ) -> None:
        self.trees, self.words, self.samples, self.seed = trees, words, samples, seed
        self.labels = list(dict.fromkeys(CLEAR_NAMES.get(label, label) for label in labels))
        self.sites: list[HeadSite] = []
        self.left_out: Counter[str] = Counter()
        # relation, pair, offsets in words of what is right
        self._queries: list[tuple[int, int, list[int]]] = []
        self._hits: list[np.ndarray] = []  # of each batch (Q, heads of all sites) bool
        self._found: list[Relation] = []
        check_labels(labels, trees.values())

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError where a map of words is not one of the batch's pieces."""
        sites = [site for site in attention.weights if site.kind == "enc-self"]
        if not sites:
            return
        self.sites, self._found = sites, []
        real, pairs = (
            attention.batch.source != attention.source_specials.padding,
            attention.batch.index.tolist(),
        )
        member, asked = self._prepare(real, pairs)
        if not asked:
            return
        row, _, query, _ = zip(*asked, strict=True)
        gold = torch.zeros(len(asked), member.shape[1], dtype=torch.bool)  # (Q, W)
        for number, (_, _, _, words) in enumerate(asked):
            gold[number, words] = True
        gold, at, word = (torch.as_tensor(each, device=real.device) for each in (gold, row, query))
        hits = []
        for site in sites:
            most, where = word_attention(attention.weights[site], member).max(3)  # (B, H, W)
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
        asked: list[tuple[int, int, int, list[int]]] = []
        cells: list[tuple[int, int, int]] = []
        for row, (pair, length) in enumerate(zip(pairs, real.sum(1).tolist(), strict=True)):
            if pair not in self.trees:
                self.left_out["sentences without a tree"] += 1
                continue
            words = self.words[pair]
            if len(words) != length - 1:
                raise ValueError(
                    f"sentence {pair} of the split has {length - 1} pieces and its map of words "
                    f"{len(words)}: expected the map of the same text and vocabulary"
                )
            cells += [(row, word, piece) for piece, word in enumerate(words) if word is not None]
            for (relation, query), others in queries(self.trees[pair], self.labels).items():
                others = [word for word in others if word in words]
                if query in words and others:
                    asked.append((row, relation, query, others))
                else:
                    self.left_out["queries of words without a piece"] += 1
        widest = max((word for _, word, _ in cells), default=0) + 1
        member = torch.zeros(len(real), widest, real.shape[1], device=real.device)
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
        if not self._found:
            names = product(self.labels, DIRECTIONS)
            self._found = [self._relation(number, *each) for number, each in enumerate(names)]
        return self._found

    def _relation(self, number: int, label: str, direction: str) -> Relation:
        heads = sum(site.heads for site in self.sites)
        chosen = [query[0] == number for query in self._queries]
        if not any(chosen):
            return Relation(label, direction, *np.full((3, heads), np.nan))
        hits = np.concatenate(self._hits)[chosen]
        asked = [query for query in self._queries if query[0] == number]
        known = sorted({o for _, _, offsets in asked for o in offsets}, key=lambda o: (abs(o), o))
        arcs = [[offsets.count(offset) for offset in known] for _, _, offsets in asked]
        # sums within sentences, in the sentences' order, so that the batches' order does not matter
        names, sentence = np.unique([pair for _, pair, _ in asked], return_inverse=True)
        sums = np.zeros((len(names), heads + len(known) + 1))
        np.add.at(sums, sentence, np.concatenate([hits, arcs, np.ones((len(asked), 1))], axis=1))
        whole = sums.sum(0)
        return Relation(
            label,
            direction,
            whole[:heads] / whole[-1],
            *bootstrap(sums, heads, samples=self.samples, seed=self.seed),
            n=len(asked),
            sentences=len(names),
            offset=known[int(whole[heads:-1].argmax())],
            baseline=float(whole[heads:-1].max() / whole[heads:-1].sum()),
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every label, direction and head: its accuracy, the baseline with its offset, the
        95% interval of their difference, the numbers of queries (n) and sentences, and whether it is
        syntactic. Without a query the first numbers are None."""
        heads = [(site, head) for site in self.sites for head in range(site.heads)]
        return [
            {
                "label": relation.label,
                "direction": relation.direction,
                "site": site.name,
                "kind": site.kind,
                "layer": site.layer,
                "head": head,
                "accuracy": float(relation.accuracy[i]) if relation.n else None,
                "baseline": relation.baseline if relation.n else None,
                "offset": relation.offset,
                "gain_low": float(relation.low[i]) if relation.n else None,
                "gain_high": float(relation.high[i]) if relation.n else None,
                "n": relation.n,
                "sentences": relation.sentences,
                "syntactic": bool(relation.syntactic[i]),
            }
            for relation in self.relations()
            for i, (site, head) in enumerate(heads)
        ]

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
        return self._map(np.fmax.reduce([r.accuracy - r.baseline for r in self.relations()]))

    def syntactic(self) -> HeadMap:
        """True where a head is syntactic for any relation."""
        return self._map(np.any([r.syntactic for r in self.relations()], axis=0))

    def _map(self, flat: np.ndarray) -> HeadMap:
        rows = torch.as_tensor(flat).split([site.heads for site in self.sites])
        return HeadMap(dict(zip(self.sites, rows, strict=True)))


def check_labels(labels: Sequence[str], trees: Iterable[Tree]) -> None:
    """Raises ValueError, which lists the labels that there are, at a label that no word of the trees has."""
    pairs = {pair for tree in trees for pair in zip(tree.labels, tree.words, strict=True)}
    present, clear_names = sorted({label for label, _ in pairs}), {clear_name(*pair) for pair in pairs}
    for label in labels:
        if CLEAR_NAMES.get(label, label) not in clear_names:
            raise ValueError(
                f"no word of the parses has the label {label!r}{nearest(label, present or ['none'])}"
            )


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
