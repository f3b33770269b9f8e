"""The numbers of a comparison: points that differ in their seed alone are one group, with a mean, a range,
and an interval.

A group's score is the mean over its seeds. Intervals and p-values count the luck of test sentences and that
of seeds (analysis/seed_luck.py); the luck of a seed is pooled over the methods with as many heads and as much
training. Differences that are asked about together are adjusted together (Holm): those of all methods at one
number of heads, and those of all rows of a table from their reference.   Letters: R resamples, N sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import rankdata  # type: ignore[import-untyped]

from headgates.analysis.metrics import Floats
from headgates.analysis.seed_luck import SeedVariance, difference_of_means, seed_variance
from headgates.analysis.significance import holm
from headgates.configs.systems import BASES
from headgates.pruning.point import MadePoint, Size
from headgates.records.row import Interval, ResultRow


@dataclass(frozen=True)
class Difference:
    """A group's score minus another's. interval: 95%; p: two-sided; p_holm: adjusted for those that were
    asked about together."""

    value: float
    interval: Interval
    p: float
    p_holm: float | None = None

    @property
    def verdict(self) -> str:
        """ahead, behind or tie, at 0.05."""
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


def together(differences: Sequence[Difference]) -> list[Difference]:
    """The differences of one family, adjusted by Holm's method."""
    adjusted = holm([each.p for each in differences]) if differences else []
    return [replace(each, p_holm=p) for each, p in zip(differences, adjusted, strict=True)]


class Group:
    """Points that differ in their seed alone, at least one. counts: (R, N), how often each sentence is in
    each resample. luck: of a seed, None where it is not known."""

    luck: SeedVariance | None = None

    def __init__(self, points: Sequence[MadePoint], counts: Floats):
        self.points, self.counts = list(points), counts
        self.first = points[0]
        self.label, self.epochs = self.first.label, self.first.epochs
        self.heads = fmean(point.row.heads_open for point in points)
        self.values = [point.row.main.value for point in points]
        self.mean = fmean(self.values)
        losses = [point.loss for point in points if point.loss is not None]
        self.loss = fmean(losses) if len(losses) == len(points) else None

    @property
    def range(self) -> Interval:
        """The lowest and the highest seed."""
        return min(self.values), max(self.values)

    def mean_of(self, metric: str) -> float:
        """The mean over seeds of a metric."""
        return fmean(point.row.measures[metric].value for point in self.points)

    def mean_size(self, name: str) -> float | None:
        """The mean over seeds of `parameters` or `seconds`; None where one is not known."""
        values = [getattr(point.row, name) for point in self.points]
        return None if None in values else fmean(values)

    @property
    def length(self) -> float | None:
        """The mean over seeds of `Scored.length`."""
        lengths = [point.scored.length for point in self.points]
        return None if None in lengths else fmean(each or 0.0 for each in lengths)

    def seconds_of(self, part: str) -> float | None:
        """The mean over seeds of a part of `ResultRow.compute`; None where one is not known."""
        parts = [point.row.compute for point in self.points]
        return None if None in parts else fmean((each or {}).get(part, 0.0) for each in parts)

    @cached_property
    def resampled(self) -> list[Floats]:
        """Of each seed (R,): its score in each resample."""
        name, metric = self.first.scored.main_name, self.first.scored.metrics[0]
        return [metric.resampled(self.counts @ point.scored.statistics[name]) for point in self.points]

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
        lucks = [(group.luck, len(group.points)) for group in groups]
        return Difference(value, *difference_of_means(value, sampled, lucks))

    def overlap(self, other: "Group") -> float | None:
        """Jaccard overlap of the open heads, the mean over pairs of seeds; None where a row does not say
        which are open, or none may close."""
        if self.first.asked is None and self.first.size != Size():
            return None
        ours, theirs = ([open_heads(point.row) for point in group.points] for group in (self, other))
        if not all((*ours, *theirs)):
            return None
        return fmean(len(a & b) / len(a | b) for a in ours for b in theirs)


def open_heads(row: ResultRow) -> set[tuple[str, int]]:
    """(site, head) of every open head, empty where the row does not say."""
    return {(site, head) for site, heads in (row.heads_by_site or {}).items() for head in heads}


class Compared:
    """All groups of a comparison. points: those of methods; bases: the base, and the base trained on, of
    every seed and length."""

    def __init__(self, points: Sequence[MadePoint], bases: Sequence[MadePoint], counts: Floats):
        def grouped(points: Sequence[MadePoint]) -> list[Group]:
            def key(point: MadePoint) -> Any:
                return (
                    point.epochs,
                    point.label,
                    -(point.asked or 0),
                    -(point.neurons or 0),
                    point.lam or 0.0,
                    point.speedup or 0.0,
                )

            return [Group(list(same), counts) for _, same in groupby(sorted(points, key=key), key=key)]

        self.groups, found = grouped(points), grouped(bases)
        alike: dict[Any, list[Group]] = {}  # pooled; a lambda may leave any number of heads
        for group in [*self.groups, *found]:
            alike.setdefault((group.epochs, group.first.size, group.label in BASES), []).append(group)
        for pool in alike.values():
            luck = seed_variance([group.values for group in pool], [group.resampled for group in pool])
            for group in pool:
                group.luck = luck
        self.bases = found
        self.base = next(group for group in found if group.label == BASES[0])
        self.continued = {group.epochs: group for group in found if group.label == BASES[1]}
        self.all_epochs = sorted({group.epochs for group in self.groups})

    @property
    def unlearned(self) -> str:
        """Why nothing is said of the heads of a base, in one sentence; empty where all have learned."""
        return next(filter(None, (group.first.row.unlearned for group in self.bases)), "")

    def reference(self, epochs: int) -> Group:
        """What groups of so much training are compared with: the base, or, where training on lowers its
        validation loss, the base trained on for as long. A base that others trained has no loss, and comes
        last."""
        later, base = self.continued.get(epochs), self.base
        if later is None or (base.loss is not None and (later.loss is None or later.loss >= base.loss)):
            return base
        return later

    def at(self, epochs: int, size: Size) -> list[Group]:
        """The groups with these numbers of heads and neurons as their target, the best first."""
        groups = [group for group in self.groups if (group.epochs, group.first.size) == (epochs, size)]
        return sorted(groups, key=lambda group: (-group.mean, group.label))

    def pair(self, group: Group, other: Group) -> Difference:
        """The difference of two methods with the same size as their target and as much training; all such
        pairs are one family."""
        pairs = list(combinations(self.at(group.epochs, group.first.size), 2))
        family = together([a.minus(b) for a, b in pairs])
        p = next(d.p_holm for pair, d in zip(pairs, family, strict=True) if {*pair} == {group, other})
        return replace(group.minus(other), p_holm=p)

    def from_reference(self, epochs: int) -> dict[Group, Difference]:
        """The difference of each group of so much training from its reference, one family."""
        groups = [group for group in self.groups if group.epochs == epochs]
        found = together([group.minus(self.reference(epochs)) for group in groups])
        return dict(zip(groups, found, strict=True))

    def sizes_asked(self, epochs: int) -> list[Size]:
        """What methods had as their target: numbers of heads and neurons, the most first, or speeds."""
        asked = {group.first.size for group in self.groups if group.epochs == epochs}
        sizes = [size for size in asked if size != Size()]
        return sorted(sizes, key=lambda size: (-(size[0] or 0), -(size[1] or 0), size.speedup or 0))

    def ranks(self, epochs: int) -> dict[str, float]:
        """label -> its mean rank over the sizes, 1 the best; equal scores share the mean of their ranks. Of
        the methods that have a point at every size; the best first."""
        tables = [
            {group.label: group.mean for group in self.at(epochs, size)} for size in self.sizes_asked(epochs)
        ]
        labels = sorted(set.intersection(*map(set, tables))) if tables else []
        ranks = [rankdata([-table[label] for label in labels]) for table in tables]
        means = {label: fmean(rank[i] for rank in ranks) for i, label in enumerate(labels)}
        return dict(sorted(means.items(), key=lambda pair: (pair[1], pair[0])))
