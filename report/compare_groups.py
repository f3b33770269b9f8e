"""The numbers of a comparison: points that differ in their seed alone are one group, with a mean, a range,
and an interval over sentences.

A group's score is the mean over its seeds. The paired bootstrap draws test sentences, the same for every
group, and takes the mean over the seeds in each resample: the interval says how far the score depends on the
sentences, the range over seeds how far on the luck of training. Letters: R resamples, N sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import rankdata  # type: ignore[import-untyped]

from headgates.analysis.metrics import Floats
from headgates.analysis.significance import interval, p_value
from headgates.workbench.point import MadePoint
from headgates.workbench.row import Interval

RESAMPLES = 1000
BASES = ("base", "base-continued")


@dataclass(frozen=True)
class Difference:
    """A group's score minus another's. interval: the middle 95% of the paired bootstrap; p: two-sided."""

    value: float
    interval: Interval
    p: float

    @property
    def verdict(self) -> str:
        """ahead, behind, or tie where the interval holds 0."""
        low, high = self.interval
        return "ahead" if low > 0 else "behind" if high < 0 else "tie"

    @property
    def columns(self) -> dict[str, float]:
        low, high = self.interval
        return {
            "difference": self.value,
            "difference_low": low,
            "difference_high": high,
            "p_value": self.p,
        }


class Group:
    """Points that differ in their seed alone, at least one. counts: (R, N), how often each sentence is in
    each resample."""

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

    @cached_property
    def resampled(self) -> Floats:
        """(R,): the mean over seeds in each resample."""
        name, metric = self.first.scored.main_name, self.first.scored.metrics[0]
        drawn = [metric.resampled(self.counts @ point.scored.statistics[name]) for point in self.points]
        return np.mean(drawn, axis=0)

    @property
    def interval(self) -> Interval:
        """The middle 95% over sentences."""
        low, high = interval(self.resampled)
        return low, high

    def minus(self, other: "Group") -> Difference:
        """The paired difference from another group."""
        value = self.mean - other.mean
        low, high = interval(self.resampled - other.resampled)
        return Difference(value, (low, high), p_value(self.resampled, other.resampled, value))


class Compared:
    """All groups of a comparison. points: those of methods; bases: the base, and the base trained on, of
    every seed and length."""

    def __init__(self, points: Sequence[MadePoint], bases: Sequence[MadePoint], counts: Floats):
        def grouped(points: Sequence[MadePoint]) -> list[Group]:
            def key(point: MadePoint) -> Any:
                return point.epochs, point.label, -(point.asked or 0), point.lam or 0.0

            return [Group(list(same), counts) for _, same in groupby(sorted(points, key=key), key=key)]

        self.groups, found = grouped(points), grouped(bases)
        self.base = next(group for group in found if group.label == BASES[0])
        self.continued = {group.epochs: group for group in found if group.label == BASES[1]}
        self.all_epochs = sorted({group.epochs for group in self.groups})

    def reference(self, epochs: int) -> Group:
        """What groups of so much training are compared with: the base, or, where training on lowers its
        validation loss, the base trained on for as long. A base that others trained has no loss, and comes
        last."""
        later, base = self.continued.get(epochs), self.base
        if later is None or (base.loss is not None and (later.loss is None or later.loss >= base.loss)):
            return base
        return later

    def at(self, epochs: int, heads: int) -> list[Group]:
        """The groups with this number of heads as their target, the best first."""
        groups = [group for group in self.groups if (group.epochs, group.first.asked) == (epochs, heads)]
        return sorted(groups, key=lambda group: (-group.mean, group.label))

    def counts_asked(self, epochs: int) -> list[int]:
        """The numbers of heads that methods had as their target, the most first."""
        asked = {group.first.asked for group in self.groups if group.epochs == epochs}
        return sorted((count for count in asked if count is not None), reverse=True)

    def ranks(self, epochs: int) -> dict[str, float]:
        """label -> its mean rank over the numbers of heads, 1 the best; equal scores share the mean of their
        ranks. Of the methods that have a point at every number; the best first."""
        tables = [
            {group.label: group.mean for group in self.at(epochs, heads)}
            for heads in self.counts_asked(epochs)
        ]
        labels = sorted(set.intersection(*map(set, tables))) if tables else []
        ranks = [rankdata([-table[label] for label in labels]) for table in tables]
        means = {label: fmean(rank[i] for rank in ranks) for i, label in enumerate(labels)}
        return dict(sorted(means.items(), key=lambda pair: (pair[1], pair[0])))
