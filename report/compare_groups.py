"""The numbers of a comparison: rows that differ in their seed alone are one group, with a mean, a range, and
an interval.

A group's score is the mean over its seeds. Intervals and p-values count the luck of test sentences and, of a
group of several seeds, that of its seeds (analysis/seed_luck.py). Between recipes of one seed no lead is
called. Differences that are asked about together are adjusted together (Holm): those that the sentences
about one size compare, and those of all rows of a table from their reference. Pairs that no sentence
compares do not count: nine recipes have 36, and with three seeds no lead is large enough for so many.

Letters: R resamples, N sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from headgates.analysis.metrics import Floats, Metric
from headgates.analysis.seed_luck import difference_of_means, seed_variance
from headgates.analysis.significance import holm, least_p
from headgates.configs.recipe import UNPRUNED, Recipe, Share, Speed, Units
from headgates.pruning.make import Row
from headgates.records.row import BASE, Interval, ResultRow

UNKNOWN = "no verdict on one seed"
ITSELF = Recipe(UNPRUNED, Units())  # the base
ComparedBudget = (
    Units | Speed | Share
)  # the budgets that recipes are compared at; others leave any number of heads


@dataclass(frozen=True)
class Difference:
    """A group's score minus another's. interval: 95%; p: two-sided; p_holm: adjusted for those that were
    asked about together; seeds: whether both groups have several, of recipes."""

    value: float
    interval: Interval
    p: float
    p_holm: float | None = None
    seeds: bool = True

    @property
    def verdict(self) -> str:
        """ahead, behind or tie, at 0.05; unknown where a recipe has one seed."""
        if not self.seeds:
            return UNKNOWN
        if (self.p if self.p_holm is None else self.p_holm) >= 0.05:
            return "tie"
        return "ahead" if self.value > 0 else "behind"

    @property
    def columns(self) -> dict[str, float]:
        low, high = self.interval
        columns = {
            "difference": self.value,
            "difference_low": low,
            "difference_high": high,
            "p_value": self.p,
        }
        return columns if self.p_holm is None else {**columns, "p_holm": self.p_holm}


class Group:
    """Rows that differ in their seed alone, at least one. counts: (R, N), how often each sentence is in each
    resample. metric: what scores them, the deciding one unless given."""

    def __init__(self, rows: Sequence[Row], counts: Floats, metric: Metric | None = None):
        self.rows, self.counts = list(rows), counts
        self.first, self.recipe = rows[0].result, rows[0].recipe or ITSELF
        self.label, self.is_base = self.first.label, self.first.is_base
        self.epochs, self.learned = self.recipe.epochs, self.recipe.learns
        budget = None if self.is_base else self.recipe.budget
        self.size: ComparedBudget | None = budget if isinstance(budget, Units | Speed | Share) else None
        self.heads = fmean(row.result.heads_open for row in rows)
        self.metric = metric or rows[0].scored.metrics[0]
        self.values = [row.scored[self.metric.name] for row in rows]
        self.mean = fmean(self.values)
        self.loss = mean([validation_loss(row.result) for row in rows])

    @property
    def range(self) -> Interval:
        """The lowest and the highest seed."""
        return min(self.values), max(self.values)

    def seconds_of(self, part: str) -> float | None:
        """The mean over seeds of a part of `ResultRow.compute`; None where one is not known."""
        computed = [row.result.compute for row in self.rows]
        return mean([None if each is None else each.get(part, 0.0) for each in computed])

    @cached_property
    def resampled(self) -> list[Floats]:
        """Of each seed (R,): its score in each resample."""
        name = self.metric.name
        return [self.metric.resampled(self.counts @ row.scored.statistics[name]) for row in self.rows]

    def by(self, metric: Metric) -> "Group":
        """The same rows, scored by another metric."""
        return Group(self.rows, self.counts, metric)

    @property
    def interval(self) -> Interval:
        """95% over sentences and seeds."""
        return self.difference(self.mean, np.mean(self.resampled, axis=0), self).interval

    def minus(self, other: "Group") -> Difference:
        """The paired difference from another group."""
        sampled = np.mean(self.resampled, axis=0) - np.mean(other.resampled, axis=0)
        return self.difference(self.mean - other.mean, sampled, self, other)

    @staticmethod
    def difference(value: float, sampled: Floats, *groups: "Group") -> Difference:
        lucks = [seed_variance(group.values, group.resampled) for group in groups]
        # the base is one model, and what is made of it is compared with that one
        several = all(luck or group.first.system == BASE for luck, group in zip(lucks, groups, strict=True))
        interval, p = difference_of_means(value, sampled, *lucks)
        return Difference(value, interval, max(p, least_p(groups[0].counts.shape[1])), seeds=several)

    def overlap(self, other: "Group") -> float | None:
        """Jaccard overlap of the open heads, the mean over pairs of seeds; None where a row does not say
        which are open, or no number of heads was asked for."""
        if not isinstance(self.size, Units) or self.size.heads is None:
            return None
        ours, theirs = ([open_heads(row.result) for row in group.rows] for group in (self, other))
        if not all((*ours, *theirs)):
            return None
        return fmean(len(a & b) / len(a | b) for a in ours for b in theirs)


GroupPair = tuple[Group, Group]


def together(pairs: Sequence[GroupPair]) -> dict[GroupPair, Difference]:
    """The first minus the second of each pair, one family by Holm's method. A pair in both orders is one
    question."""
    found = {pair: pair[0].minus(pair[1]) for pair in pairs}
    p_values = {frozenset(pair): difference.p for pair, difference in found.items()}
    adjusted = dict(zip(p_values, holm(list(p_values.values())) if p_values else [], strict=True))
    return {pair: replace(each, p_holm=adjusted[frozenset(pair)]) for pair, each in found.items()}


def mean(values: Sequence[float | None]) -> float | None:
    """None where one is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def validation_loss(row: ResultRow) -> float | None:
    """Its own, or that of the best epoch of its training."""
    if row.loss is not None or not row.stage:
        return row.loss
    return row.losses[row.stage["best_epoch"]]


def open_heads(row: ResultRow) -> set[tuple[str, int]]:
    """(site, head) of every open head, empty where the row does not say."""
    return {(site, head) for site, heads in (row.heads_by_site or {}).items() for head in heads}


def size_order(size: ComparedBudget | None) -> Any:
    """Sizes from the most to the least."""
    if isinstance(size, Units):
        return 0, -(size.heads or 0), -(size.neurons or 0)
    if isinstance(size, Share):
        return 1, size.of, -size.share
    return (2, size.factor) if isinstance(size, Speed) else (3,)


def grouped(rows: Sequence[Row], counts: Floats) -> list[Group]:
    """By training, label and size; rows of one group in their order."""
    alike: dict[Recipe, list[Row]] = {}
    for row in rows:
        alike.setdefault(replace(row.recipe or ITSELF, seed=0), []).append(row)
    groups = [Group(same, counts) for same in alike.values()]
    return sorted(groups, key=lambda group: (group.epochs, group.label, size_order(group.size)))


class Compared:
    """All groups of a comparison. rows: of recipes; bases: the base, and the base trained on, of every seed
    and length."""

    def __init__(self, rows: Sequence[Row], bases: Sequence[Row], counts: Floats):
        self.groups, self.bases = grouped(rows, counts), grouped(bases, counts)
        self.base = next(group for group in self.bases if group.first.system == BASE)
        self.continued = {group.epochs: group for group in self.bases if group is not self.base}
        self.all_epochs = sorted({group.epochs for group in self.groups} | {*self.continued}) or [0]

    @property
    def unlearned(self) -> str:
        """Why nothing is said of the heads of a base, in one sentence; empty where all have learned."""
        return next(filter(None, (group.first.unlearned for group in self.bases)), "")

    @property
    def shown_epochs(self) -> list[int]:
        """The amounts of training of which something is said: none where a base learned nothing."""
        return [] if self.unlearned else self.all_epochs

    def reference(self, epochs: int) -> Group:
        """What groups of so much training are compared with: the base trained on for as long, or the base
        itself where there is none."""
        return self.continued.get(epochs, self.base)

    def at(self, epochs: int, size: ComparedBudget | None) -> list[Group]:
        """The groups of this size, the best first."""
        groups = [group for group in self.groups if (group.epochs, group.size) == (epochs, size)]
        return sorted(groups, key=lambda group: (-group.mean, group.label))

    def from_reference(self, epochs: int) -> dict[Group, Difference]:
        """The difference of each group of so much training from its reference, one family."""
        reference = self.reference(epochs)
        found = together([(group, reference) for group in self.groups if group.epochs == epochs])
        return {group: difference for (group, _), difference in found.items()}

    def sizes(self, epochs: int) -> list[ComparedBudget]:
        """What recipes are compared at, from the most to the least."""
        sizes = {group.size for group in self.groups if group.epochs == epochs and group.size is not None}
        return sorted(sizes, key=size_order)

    def ranks(self, epochs: int) -> dict[str, float]:
        """label -> its mean rank over the sizes, 1 the best; equal scores share the mean of their ranks. Of
        the methods that have a point at every size; the best first."""
        from scipy.stats import rankdata  # type: ignore[import-untyped]

        tables = [{group.label: group.mean for group in self.at(epochs, size)} for size in self.sizes(epochs)]
        labels = sorted(set.intersection(*map(set, tables))) if tables else []
        ranks = [rankdata([-table[label] for label in labels]).tolist() for table in tables]
        means = {label: fmean(rank[i] for rank in ranks) for i, label in enumerate(labels)}
        return dict(sorted(means.items(), key=lambda pair: (pair[1], pair[0])))
