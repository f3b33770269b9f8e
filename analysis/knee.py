"""The knee: the fewest heads whose loss of quality is acceptable, chosen on validation.

A point is acceptable where its mean drop from the reference is at most `max_drop`, and the one-sided 95%
bound of the drop by the paired bootstrap at most `max_drop + SLACK`: the mean alone would take a lucky point
of a small set, the bound alone none where a set is small. Drops are in the points of the metric that decides
(BLEU, accuracy), reference - system, so a gain is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headgates.analysis.extras import Extra
from headgates.analysis.metrics import Floats
from headgates.analysis.significance import Scored

if TYPE_CHECKING:
    import numpy as np
else:
    np = Extra("numpy")

SLACK = 0.7  # how far the bound may lie beyond the accepted mean drop
ONE_SIDED = 0.95
# a drop is detected at this level in four of five samples: the two normal quantiles of the usual plan of a
# test, .95 and .80
DETECTED = 1.6449 + 0.8416


@dataclass(frozen=True)
class Drop:
    """How far a system stands below the reference on one set of lines, in points of a metric.

    bound: 95% of the bootstrap's drops are below it. detectable: the smallest true drop that a one-sided test
    at 5% on lines like these would find with a chance of 80%, 2.49 standard errors of the difference."""

    heads_open: int
    mean: float
    bound: float
    detectable: float

    def acceptable(self, max_drop: float) -> bool:
        return self.mean <= max_drop and self.bound <= max_drop + SLACK

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def drop(
    heads_open: int, system: Scored, reference: Scored, counts: Floats, *, metric: str | None = None
) -> Drop:
    """The drop of a system in a metric (the deciding one unless named), on the resamples `counts` (R, N) of
    both systems' N lines."""
    name = metric or reference.main_name
    resampled = next(each for each in reference.metrics if each.name == name).resampled
    drops = resampled(counts @ reference.statistics[name]) - resampled(counts @ system.statistics[name])
    bound = float(np.quantile(drops, ONE_SIDED, method="higher"))
    return Drop(heads_open, reference[name] - system[name], bound, DETECTED * float(drops.std(ddof=1)))


def knee(drops: Sequence[Drop], max_drop: float) -> Drop | None:
    """The acceptable point with the fewest open heads, None where no point is acceptable.

    A point with more heads that is not acceptable does not matter: what counts is that these few heads were
    enough. Raises ValueError unless max_drop is finite and at least 0."""
    if not (np.isfinite(max_drop) and max_drop >= 0):
        raise ValueError(f"expected a largest drop of at least 0 points, got {max_drop}")
    return min(
        (each for each in drops if each.acceptable(max_drop)), key=lambda each: each.heads_open, default=None
    )
