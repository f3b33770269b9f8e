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

import numpy as np

from headgates.analysis.metrics import Floats
from headgates.analysis.significance import Scored, interval, p_value
from headgates.configs.scores import ZERO
from headgates.workbench.row import Interval, ResultRow

RESAMPLES = 1000
BASES = ("base", "base-continued")


@dataclass(frozen=True)
class MadePoint:
    """A finished point of a comparison: one run of a method, or of a base. asked: the heads it was told, None
    where lambda (`lam`) steers; run: the name of its folder; scored: its outputs of the test set."""

    method: str
    epochs: int
    seed: int
    run: str
    row: ResultRow
    scored: Scored
    asked: int | None = None
    lam: float | None = None
    closing: str = ZERO
    learned: bool = False

    @property
    def label(self) -> str:
        """What figures and tables call it: the method, with the closing unless that is zero."""
        return self.method if self.closing == ZERO else f"{self.method}-{self.closing}"

    @property
    def loss(self) -> float | None:
        """The validation loss of its best epoch, in nats per token; None where nothing was trained, or others
        trained it."""
        stage = self.row.stage or {}
        return float(stage["losses"][stage["best_epoch"]]) if stage.get("losses") else None


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


class Group:
    """Points that differ in their seed alone, at least one. counts: (R, N), how often each sentence is in
    each resample."""

    def __init__(self, points: Sequence[MadePoint], counts: Floats):
        self.points, self.counts = list(points), counts
        first = points[0]
        self.label, self.method, self.closing, self.epochs = (
            first.label,
            first.method,
            first.closing,
            first.epochs,
        )
        self.asked, self.lam, self.learned = first.asked, first.lam, first.learned

    @property
    def heads(self) -> float:
        """Open heads, the mean over seeds; a whole number where the method was told."""
        return sum(point.row.heads_open for point in self.points) / len(self.points)

    @property
    def values(self) -> list[float]:
        """The score of each seed."""
        return [point.row.main.value for point in self.points]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def range(self) -> Interval:
        """The lowest and the highest seed."""
        return min(self.values), max(self.values)

    def mean_of(self, metric: str) -> float:
        """The mean over seeds of a further metric."""
        return sum(point.row.measures[metric].value for point in self.points) / len(self.points)

    @property
    def loss(self) -> float | None:
        """The mean validation loss; None unless every seed has one."""
        losses = [point.loss for point in self.points]
        known = [loss for loss in losses if loss is not None]
        return sum(known) / len(known) if len(known) == len(losses) else None

    @cached_property
    def resampled(self) -> Floats:
        """(R,): the mean over seeds in each resample."""
        name, metric = self.points[0].scored.main_name, self.points[0].scored.metrics[0]
        return np.mean(
            [metric.resampled(self.counts @ point.scored.statistics[name]) for point in self.points], axis=0
        )

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
        def key(point: MadePoint) -> tuple[int, str, int, float]:
            return point.epochs, point.label, -(point.asked or 0), point.lam or 0.0

        self.groups = [Group(list(same), counts) for _, same in groupby(sorted(points, key=key), key=key)]
        found = [Group(list(same), counts) for _, same in groupby(sorted(bases, key=key), key=key)]
        self.base = next(group for group in found if group.method == BASES[0])
        self.continued = {group.epochs: group for group in found if group.method == BASES[1]}

    @property
    def all_epochs(self) -> list[int]:
        return sorted({group.epochs for group in self.groups})

    @property
    def labels(self) -> list[str]:
        """Learned methods first, then by name."""
        return sorted(
            {group.label for group in self.groups}, key=lambda label: (not self.is_learned(label), label)
        )

    def is_learned(self, label: str) -> bool:
        return any(group.learned for group in self.groups if group.label == label)

    def reference(self, epochs: int) -> Group:
        """What groups of so much training are compared with: the base, or, where training on lowers its
        validation loss, the base trained on for as long. A base that others trained has no loss, and comes
        last."""
        continued = self.continued.get(epochs)
        if continued is None:
            return self.base
        base, later = self.base.loss, continued.loss
        return continued if base is None or (later is not None and later < base) else self.base

    def at(self, epochs: int, heads: int) -> list[Group]:
        """The groups that were told this number of heads, the best first."""
        return sorted(
            (g for g in self.groups if g.epochs == epochs and g.asked == heads),
            key=lambda g: (-g.mean, g.label),
        )

    def counts_asked(self, epochs: int) -> list[int]:
        """The numbers of heads that methods were told, the most first."""
        return sorted(
            {g.asked for g in self.groups if g.epochs == epochs and g.asked is not None}, reverse=True
        )

    def ranks(self, epochs: int) -> dict[str, float]:
        """label -> its mean rank over the numbers of heads, 1 the best; equal scores share the mean of their
        ranks. Of the methods that have a point at every number; the best first."""
        asked = self.counts_asked(epochs)
        tables = [{group.label: group.mean for group in self.at(epochs, heads)} for heads in asked]
        complete = [label for label in self.labels if tables and all(label in table for table in tables)]
        sums = {label: 0.0 for label in complete}
        for table in tables:
            for label in complete:
                better = sum(table[other] > table[label] for other in complete)
                equal = sum(table[other] == table[label] for other in complete)
                sums[label] += better + (equal + 1) / 2
        return dict(
            sorted(
                ((label, total / len(asked)) for label, total in sums.items()),
                key=lambda pair: (pair[1], pair[0]),
            )
        )
