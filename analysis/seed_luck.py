"""Is a difference between two methods more than the luck of the test sentences and of the training seeds?

A method's score is the mean over its S seeds. Drawing other sentences and other seeds, its difference from
another method's would vary by

    Var = B + max(0, V_a - I_a) / S_a + max(0, V_b - I_b) / S_b

V: between the seeds of a method, on the lines that there are. B: of the difference between resamples of the
sentences (the paired bootstrap), the seeds as they are. I: the part of a V that other sentences would change
too, which B holds as well: between resamples, of each seed's distance from the mean of its method.
Interval and p-value are Student's t with Satterthwaite's degrees of freedom (1946), so they agree: with three
seeds the luck of training is known from few differences. Where no method has two seeds, V and I are unknown
and only the sentences count.   Letters: R resamples, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgates.analysis.extras import Extra
from headgates.analysis.metrics import Floats

if TYPE_CHECKING:
    import numpy as np
    from scipy import stats  # type: ignore[import-untyped]
else:
    np = Extra("numpy")
    stats = Extra("scipy.stats")

Resampled = Sequence[Floats]  # a method: the scores (R,) of each of its seeds, on the same resamples


@dataclass(frozen=True)
class SeedVariance:
    """V and I of one seed's score, in squared units of the metric, and the degrees of freedom of V."""

    seeds: float
    sentences: float
    freedom: int


def seed_variance(values: Sequence[Sequence[float]], resampled: Sequence[Resampled]) -> SeedVariance | None:
    """Pooled over methods whose luck is taken to be alike, such as those with as many heads and as much
    training. values: each method's scores by seed; resampled: the same on resamples. None without a method
    of two seeds."""
    freedom = sum(len(seeds) - 1 for seeds in values)
    if not freedom:
        return None
    squares = sum(float(np.var(seeds)) * len(seeds) for seeds in values)
    apart = [np.asarray(seeds) - np.mean(seeds, axis=0) for seeds in resampled]  # (S, R) each
    shared = sum(float(np.var(rows, axis=1).sum()) for rows in apart)
    return SeedVariance(squares / freedom, shared / freedom, freedom)


def difference_of_means(
    difference: float,
    sampled: Floats,
    lucks: Sequence[tuple[SeedVariance | None, int]],
) -> tuple[tuple[float, float], float]:
    """95% interval and two-sided p of a difference of two methods. sampled: (R,), the difference of their
    means over seeds on each resample; lucks: of each method its SeedVariance and its number of seeds; the
    same object where it was pooled over both."""
    pooled: dict[int, tuple[SeedVariance, float]] = {}  # of each source of luck: how often it stands in Var
    for luck, seeds in lucks:
        if luck is not None:
            pooled[id(luck)] = luck, pooled.get(id(luck), (luck, 0.0))[1] + 1 / seeds
    variance = float(np.var(sampled))
    variance += sum(max(0.0, luck.seeds - luck.sentences) * weight for luck, weight in pooled.values())
    if not variance:
        return (difference, difference), float(difference == 0)
    uncertain = sum(
        (max(luck.seeds, luck.sentences) * weight) ** 2 / luck.freedom for luck, weight in pooled.values()
    )
    freedom = variance**2 / uncertain if uncertain else np.inf
    error = float(np.sqrt(variance))
    margin = float(stats.t.ppf(0.975, freedom)) * error
    return (difference - margin, difference + margin), float(2 * stats.t.sf(abs(difference) / error, freedom))
