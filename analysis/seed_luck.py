"""Is a difference between two methods more than the luck of the test sentences and of the training seeds?

A method's score is the mean over its S seeds. Its difference from another method's lies with confidence 1 - p
within the margin

    m(p)^2 = z(p)^2 (B - I_a / S_a - I_b / S_b) + t(p, S_a - 1)^2 V_a / S_a + t(p, S_b - 1)^2 V_b / S_b

V: between the seeds of a method, on the lines that there are, and at least its I. B: of the difference
between resamples of the sentences (the paired bootstrap), the seeds as they are. I: the part of a V that
other sentences would change too, which B holds as well: between resamples, of each seed's distance from the
mean of its method. z and t: two-sided quantiles of the normal distribution, and of Student's with so many
degrees of freedom. The interval is m(0.05), the p-value that of the margin which is as large as the
difference.

So what is known from few seeds has the wide margin of few seeds. Satterthwaite's degrees of freedom for the
sum of the variances (1946) called true ties of three seeds different in 9% at 0.05 where one method's seeds
differ far more than the other's, as they do: at 9 heads of Multi30k V is 27 times as large for one method as
for another. For that reason no two methods share a V either. Of a method of one seed V and I are unknown,
and only the sentences count. Letters: R resamples, S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgates.analysis.extras import Extra
from headgates.analysis.metrics import Floats

if TYPE_CHECKING:
    import numpy as np
    from scipy import optimize, special  # type: ignore[import-untyped]
else:
    np = Extra("numpy")
    optimize, special = Extra("scipy.optimize"), Extra("scipy.special")

LEAST_P = 1e-30


@dataclass(frozen=True)
class SeedVariance:
    """V / S and I / S of a method, in squared units of the metric, and its number of seeds."""

    seeds: float
    sentences: float
    count: int


def seed_variance(values: Sequence[float], resampled: Sequence[Floats]) -> SeedVariance | None:
    """values: the scores of a method by seed, (S,); resampled: (S, R), the same on resamples. None without
    two seeds."""
    count = len(values)
    if count < 2:
        return None
    apart = np.asarray(resampled) - np.mean(resampled, axis=0)
    shared = float(np.var(apart, axis=1).sum()) / (count - 1)
    return SeedVariance(max(float(np.var(values, ddof=1)), shared) / count, shared / count, count)


def difference_of_means(
    difference: float, sampled: Floats, *lucks: SeedVariance | None
) -> tuple[tuple[float, float], float]:
    """95% interval and two-sided p of a difference of two methods, or of one from a number. sampled: (R,),
    the difference of their means over seeds on each resample; lucks: of each method."""
    known = [luck for luck in lucks if luck is not None]
    of_sentences = max(0.0, float(np.var(sampled)) - sum(luck.sentences for luck in known))

    def margin(p: float) -> float:
        variance = special.ndtri(p / 2) ** 2 * of_sentences
        variance += sum(special.stdtrit(luck.count - 1, p / 2) ** 2 * luck.seeds for luck in known)
        return float(variance**0.5)

    size, least = abs(difference), math.log(LEAST_P)
    if size >= margin(LEAST_P):
        p = float(not size)  # nothing varies, or it hardly does
    else:
        p = math.exp(optimize.brentq(lambda log: margin(math.exp(log)) - size, least, 0.0))
    return (difference - margin(0.05), difference + margin(0.05)), p
