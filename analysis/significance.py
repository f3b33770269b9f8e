"""Paired bootstrap over the sentence statistics of a task's metrics: is a difference between two systems
significant?

Koehn 2004. `p_value` is two-sided. `sacrebleu_p_value` is what `sacrebleu.significance` prints (Moses'
script), to rounding: it is called two-sided too, but counts one tail of the centred samples, so that under a
true null it falls below .05 in about 10% of the comparisons. Where a metric says of each line whether it is
right, McNemar's exact test stands beside them. Letters: R resamples, N sentences, M statistics of a sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgates.analysis.extras import Extra
from headgates.analysis.metrics import BLEU, CHRF, Floats, Metric

if TYPE_CHECKING:
    import numpy as np
else:
    np = Extra("numpy")

RESAMPLES = 1000
BOOTSTRAP_SEED = 12345  # sacreBLEU's default, so that its command line gives the same p-values
LEVEL = 0.01  # of significance, the paper's
# stands in every table's fingerprint: tables of another test are not read as ours
TEST = "paired bootstrap, two-sided"
P_VALUES = ("p_value", "p_sacrebleu", "p_mcnemar")  # of a difference; the last where lines are right or wrong
AT_ONCE = 4_000_000  # draws held at once: 32 MB an array
TRANSLATION = (BLEU, CHRF)


@dataclass(frozen=True)
class Scored:
    """The scores of one system's outputs by the metrics of a task; the first metric decides.

    statistics: metric name -> (N, M), those of every sentence."""

    metrics: tuple[Metric, ...]
    values: dict[str, float]
    statistics: dict[str, Floats] = field(repr=False)

    def __getitem__(self, metric: str) -> float:
        return self.values[metric]

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.main_statistics)

    @property
    def length(self) -> float | None:
        """Words of the outputs for each word of the references, as BLEU counts them; None without BLEU."""
        if "bleu" not in self.statistics:
            return None
        written, wanted = self.statistics["bleu"][:, :2].sum(0)
        return float(written / wanted)

    @property
    def main_name(self) -> str:
        """The name of the deciding metric."""
        return self.metrics[0].name

    @property
    def main(self) -> float:
        """The value of the deciding metric."""
        return self.values[self.main_name]

    @property
    def main_statistics(self) -> Floats:
        return self.statistics[self.main_name]

    @property
    def signatures(self) -> dict[str, str]:
        """The signature of each metric."""
        return {metric.name: metric.signature() for metric in self.metrics}


def score(
    outputs: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[Metric] = TRANSLATION,
    sources: Sequence[str] = (),
) -> Scored:
    """Score detokenised lines. sources: their source lines, which metrics of the user's own read. Raises
    ValueError when the numbers of lines differ or there are none."""
    if len(outputs) != len(references) or not references:
        raise ValueError(
            f"expected as many hypotheses as references, at least one; got {len(outputs)} and "
            f"{len(references)}"
        )
    found = {metric.name: metric.statistics(outputs, references, sources) for metric in metrics}
    return scored(found, metrics)


def scored(statistics: Mapping[str, Floats], metrics: Sequence[Metric] = TRANSLATION) -> Scored:
    """The scores of a system whose sentences have these statistics, (N, M) for each metric."""
    values = {metric.name: metric.score(statistics[metric.name].sum(axis=0).tolist()) for metric in metrics}
    return Scored(tuple(metrics), values, dict(statistics))


def score_changed(
    base: Scored,
    drafts: Sequence[str],
    changed: Mapping[int, str],
    references: Sequence[str],
    sources: Sequence[str] = (),
) -> Scored:
    """The `score` of the drafts with some lines changed (number -> output); base: the score of the drafts.
    Only lines that differ from their draft are scored again. Raises ValueError unless base, drafts and
    references have the same number of lines."""
    if not len(base) == len(drafts) == len(references):
        raise ValueError(
            f"expected drafts and references of {len(base)} lines, got {len(drafts)} and {len(references)}"
        )
    lines = [i for i in sorted(changed) if changed[i] != drafts[i]]
    if not lines:
        return base
    read = [sources[i] for i in lines] if sources else []
    new = score([changed[i] for i in lines], [references[i] for i in lines], base.metrics, read)
    statistics = {name: rows.copy() for name, rows in base.statistics.items()}
    for name, rows in new.statistics.items():
        statistics[name][lines] = rows
    return scored(statistics, base.metrics)


def resample_chunks(
    sentences: int, resamples: int, seed: int = BOOTSTRAP_SEED, *, size: int | None = None
) -> Iterator[Floats]:
    """The rows of `resample_counts`, as many at a time as AT_ONCE draws allow."""
    generator = np.random.default_rng(seed)
    chunk = max(1, AT_ONCE // sentences)
    for begin in range(0, resamples, chunk):
        rows = min(chunk, resamples - begin)
        sampled = generator.choice(sentences, size=(rows, size or sentences))
        sampled += np.arange(rows)[:, None] * sentences
        counts = np.bincount(sampled.ravel(), minlength=rows * sentences)
        yield counts.reshape(rows, sentences).astype(np.float64)


def resample_counts(sentences: int, resamples: int, *, size: int | None = None) -> Floats:
    """(R, N): how often each sentence is in each resample; every row sums to `size`, N unless given. The
    draws are sacreBLEU's."""
    return np.concatenate(list(resample_chunks(sentences, resamples, size=size)))


def interval(samples: Floats) -> list[float]:
    """The middle 95% of bootstrap samples."""
    ordered = np.sort(samples)
    cut = len(ordered) // 40
    return [float(ordered[cut]), float(ordered[-cut - 1])]


def p_value(system: Floats, reference: Floats, difference: float) -> float:
    """Two-sided p of `difference` between two systems on the same resamples (R,): how often a centred sampled
    difference x - mean(x) is at least as large in size, with one added to both counts (Davison and Hinkley
    1997, equation 4.11), so that it is never 0."""
    sampled = system - reference
    return float((np.sum(np.abs(sampled - sampled.mean()) >= abs(difference)) + 1) / (len(sampled) + 1))


def least_p(sentences: int) -> float:
    """The smallest p that so many sentences can give, 2^(1-N): the chance that one of two equal systems is
    better on every one of them."""
    return 0.5 ** (sentences - 1)


def sacrebleu_p_value(system: Floats, reference: Floats, difference: float) -> float:
    """sacreBLEU's p of the same: it centres the sizes |x| instead of the differences x, and counts those
    above |difference|."""
    sampled = np.abs(system - reference)
    if not sampled.any():
        return (
            1.0  # the same translations; sacreBLEU's count of larger differences would call that significant
        )
    return float((np.sum(sampled - sampled.mean() > abs(difference)) + 1) / (len(sampled) + 1))


def half_sample_p_values(
    systems: Sequence[Scored], reference: Scored, *, resamples: int = RESAMPLES
) -> list[float]:
    """For each system, the share of resamples of half the size, drawn with replacement, in which the better
    of it and the reference on the whole test set is not better: compare-mt's "win ratio" with its defaults,
    as Michel et al. 2019 tested. No p-value under a null: halves vary more than the whole, and it is
    one-sided. 1 where the system is the reference's equal. In the metric that decides."""
    counts = resample_counts(len(reference), resamples, size=len(reference) // 2)
    theirs, *samples = (
        reference.metrics[0].resampled(counts @ each.main_statistics) for each in (reference, *systems)
    )
    return [
        1.0 - float(np.mean((ours - theirs) * np.sign(system.main - reference.main) > 0))
        for system, ours in zip(systems, samples, strict=True)
    ]


def mcnemar_p_value(system: Floats, reference: Floats) -> float:
    """Exact two-sided p of the lines that one system alone has right, (N,) 1 or 0 each: under the null each
    system has half of them (McNemar 1947; the binomial test). 1 where there are none."""
    alone = int(np.sum(system > reference)), int(np.sum(system < reference))
    tail = sum(math.comb(sum(alone), k) for k in range(min(alone) + 1))
    return min(1.0, tail / 2 ** (sum(alone) - 1)) if sum(alone) else 1.0


def compare(system: Scored, reference: Scored, counts: Floats) -> dict[str, Any]:
    """Differences system - reference in every metric, with 95% intervals and p-values on the resamples
    `counts` (R, N)."""
    out: dict[str, Any] = {}
    for metric in system.metrics:
        ours, theirs = (
            metric.resampled(counts @ each.statistics[metric.name]) for each in (system, reference)
        )
        out |= columns(metric, system, reference, ours, theirs)
    return out


def above_trivial(
    outputs: Sequence[str], references: Sequence[str], metric: Metric
) -> tuple[float, float] | None:
    """The ends of the 95% interval of how far a system's score is above that of outputs that ignore the
    sources, by paired bootstrap. A system has learned its task where the lower end is above 0.

    Three such outputs: the most frequent reference on every line (a classifier's majority class), the
    references of other lines (the language, without the source), and the system's own outputs of other lines.
    The interval is the one with the lowest lower end: a system must be above all three, so that one that
    learned nothing passes at most once in forty (an intersection-union test). None for fewer than four lines:
    one of them, whose reference is the most frequent, fills more than one resample in forty, so that no
    system could pass."""
    if len(references) < 4:
        return None
    half = len(references) // 2

    def elsewhere(lines: Sequence[str]) -> list[str]:
        return [*lines[half:], *lines[:half]]

    often = Counter(references).most_common(1)[0][0]
    counts = resample_counts(len(references), RESAMPLES)
    ours, *trivial = (
        metric.resampled(counts @ metric.statistics(lines, references, ()))
        for lines in (outputs, [often] * len(references), elsewhere(references), elsewhere(outputs))
    )
    low, high = min(interval(ours - theirs) for theirs in trivial)
    return low, high


def columns(
    metric: Metric, system: Scored, reference: Scored, ours: Floats, theirs: Floats
) -> dict[str, Any]:
    """What stands of one metric in a comparison, from the resampled scores (R,) of both systems. McNemar's p
    only where the metric says of every line whether it is right."""
    name = metric.name
    difference = system[name] - reference[name]
    found = {
        "ci95": interval(ours),
        "difference": difference,
        "difference_ci95": interval(ours - theirs),
        "p_value": max(p_value(ours, theirs, difference), least_p(len(system.statistics[name]))),
        "p_sacrebleu": sacrebleu_p_value(ours, theirs, difference),
    }
    if metric.right_or_wrong:
        found["p_mcnemar"] = mcnemar_p_value(*(each.statistics[name][:, 0] for each in (system, reference)))
    return {f"{name}_{column}": value for column, value in found.items()}


def compare_many(systems: Sequence[Scored], reference: Scored, *, resamples: int) -> list[dict[str, Any]]:
    """The entries of `compare` for the metric that decides, for each of many systems on the same resamples.

    Resamples are drawn in chunks, of which only each system's score (R,) is kept. All sums are of whole
    numbers, so that the results equal those of `compare` to the last digit."""
    metric, every = reference.metrics[0], (reference, *systems)
    side_by_side = np.hstack([each.main_statistics for each in every])
    samples: list[list[Floats]] = []  # of each chunk: the reference's, then every system's
    for counts in resample_chunks(len(reference), resamples):
        sums = np.split(counts @ side_by_side, len(every), axis=1)
        samples.append([metric.resampled(each) for each in sums])
    theirs, *many = map(np.concatenate, zip(*samples, strict=True))
    return [
        columns(metric, system, reference, ours, theirs) for system, ours in zip(systems, many, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm 1979: each p-value adjusted for all that were tested together, in the order given, at most 1."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return [float(value) for value in adjusted[np.argsort(order)]]
