"""BLEU and chrF with signatures, and whether their differences are real: the paired bootstrap, vectorised over sacreBLEU's statistics.

Koehn 2004; the p-value is sacreBLEU's own (Moses' script): with the same resamples it equals `sacrebleu.significance` to rounding.
Letters: R resamples, N sentences, M statistics of a sentence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

Floats = NDArray[np.float64]
SEED = 12345  # sacreBLEU's default, so that its command line gives the same p-values
AT_ONCE = 4_000_000  # draws held at once: 32 MB an array


@dataclass(frozen=True)
class Scored:
    """One system's hypotheses scored against the references."""

    bleu: float
    chrf: float
    bleu_stats: Floats = field(repr=False)  # (N, 10): lengths of hypothesis and reference, matches and totals of 1- to 4-grams
    chrf_stats: Floats = field(repr=False)  # (N, 18): hypothesis, reference and matching n-grams, 6 orders
    signatures: dict[str, str]


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
    """BLEU (13a, cased) and chrF2 of detokenised lines. Raises ValueError when the numbers of lines differ or there are none."""
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"expected as many hypotheses as references, at least one; got {len(hypotheses)} and {len(references)}")
    bleu, chrf = BLEU(force=True), CHRF()
    lines, one_reference = list(hypotheses), [list(references)]
    bleu_stats = np.array(bleu._extract_corpus_statistics(lines, one_reference), dtype=np.float64)
    chrf_stats = np.array(chrf._extract_corpus_statistics(lines, one_reference), dtype=np.float64)
    return scored(bleu_stats, chrf_stats, {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())})


def scored(bleu_stats: Floats, chrf_stats: Floats, signatures: dict[str, str]) -> Scored:
    """The system whose sentences have these statistics, (N, 10) and (N, 18)."""
    sums = [stats.sum(axis=0).astype(int).tolist() for stats in (bleu_stats, chrf_stats)]
    bleu, chrf = BLEU(force=True)._compute_score_from_stats(sums[0]).score, CHRF()._compute_score_from_stats(sums[1]).score
    return Scored(bleu, chrf, bleu_stats, chrf_stats, signatures)


def score_changed(base: Scored, drafts: Sequence[str], changed: Mapping[int, str], references: Sequence[str]) -> Scored:
    """What `score` gives for the drafts with some lines changed (number -> translation); base: the drafts scored. Only lines that differ
    from their draft are scored anew. Raises ValueError unless base, drafts and references have the same number of lines."""
    if not len(base.bleu_stats) == len(drafts) == len(references):
        raise ValueError(f"expected drafts and references of {len(base.bleu_stats)} lines, got {len(drafts)} and {len(references)}")
    lines = [i for i in sorted(changed) if changed[i] != drafts[i]]
    if not lines:
        return base
    new = score([changed[i] for i in lines], [references[i] for i in lines])
    bleu_stats, chrf_stats = base.bleu_stats.copy(), base.chrf_stats.copy()
    bleu_stats[lines], chrf_stats[lines] = new.bleu_stats, new.chrf_stats
    return scored(bleu_stats, chrf_stats, base.signatures)


def resample_chunks(sentences: int, resamples: int, seed: int = SEED, *, at_once: int | None = None) -> Iterator[Floats]:
    """The rows of `resample_counts`, `at_once` at a time (by default as many as AT_ONCE draws allow)."""
    generator = np.random.default_rng(seed)
    size = at_once or max(1, AT_ONCE // sentences)
    for begin in range(0, resamples, size):
        rows = min(size, resamples - begin)
        drawn = generator.choice(sentences, size=(rows, sentences), replace=True)
        drawn += np.arange(rows)[:, None] * sentences
        yield np.bincount(drawn.ravel(), minlength=rows * sentences).reshape(rows, sentences).astype(np.float64)


def resample_counts(sentences: int, resamples: int, seed: int = SEED) -> Floats:
    """(R, N): how often each sentence is in each resample; every row sums to N. The draws are sacreBLEU's."""
    return next(resample_chunks(sentences, resamples, seed, at_once=resamples))


def corpus_bleu(stats: Floats) -> Floats:
    """BLEU (R,) of summed statistics (R, 10), with sacreBLEU's default `exp` smoothing."""
    system, reference = stats[:, 0], stats[:, 1]
    correct, total = stats[:, 2:6], stats[:, 6:10]
    seen = np.cumprod(total > 0, axis=1).astype(bool)  # sacreBLEU stops at the first order without n-grams
    missed = (correct == 0) & seen
    smooth = 2.0 ** np.cumsum(missed, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(missed, 100 / (smooth * total), 100 * correct / total)
        logs = np.where(seen, np.log(precision), -9999999999.0)  # sacreBLEU's log of 0
        penalty = np.where(system < reference, np.where(system > 0, np.exp(1 - reference / system), 0.0), 1.0)
    return np.where(correct.any(axis=1), penalty * np.exp(logs.mean(axis=1)), 0.0)


def corpus_chrf(stats: Floats) -> Floats:
    """chrF2 (R,) of summed statistics (R, 18): the F2 of precision and recall averaged over the orders that occur."""
    hypothesis, reference, match = stats[:, 0::3], stats[:, 1::3], stats[:, 2::3]
    both = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(both.sum(axis=1), 1)
    precision = np.where(both, match / np.maximum(hypothesis, 1), 0).sum(axis=1) / orders
    recall = np.where(both, match / np.maximum(reference, 1), 0).sum(axis=1) / orders
    return 100 * 5 * precision * recall / np.maximum(4 * precision + recall, 1e-300)


def interval(samples: Floats) -> list[float]:
    """The middle 95% of bootstrap samples."""
    ordered = np.sort(samples)
    cut = len(ordered) // 40
    return [float(ordered[cut]), float(ordered[-cut - 1])]


def p_value(system: Floats, reference: Floats, difference: float) -> float:
    """Two-sided p of `difference` between two systems on the same resamples (R,): how often a centred sampled difference is larger."""
    sampled = np.abs(system - reference)
    if not sampled.any():
        return 1.0  # the same translations; sacreBLEU's count of larger differences would call that significant
    return float((np.sum(sampled - sampled.mean() > abs(difference)) + 1) / (len(sampled) + 1))


def compare(system: Scored, reference: Scored, counts: Floats) -> dict[str, Any]:
    """Differences system - reference with 95% intervals and p-values on the resamples `counts` (R, N)."""
    out: dict[str, Any] = {}
    for name, formula in (("bleu", corpus_bleu), ("chrf", corpus_chrf)):
        ours = formula(counts @ getattr(system, f"{name}_stats"))
        theirs = formula(counts @ getattr(reference, f"{name}_stats"))
        difference = getattr(system, name) - getattr(reference, name)
        out[f"{name}_ci95"] = interval(ours)
        out[f"{name}_difference"] = difference
        out[f"{name}_difference_ci95"] = interval(ours - theirs)
        out[f"{name}_p_value"] = p_value(ours, theirs, difference)
    return out


def compare_many(systems: Sequence[Scored], reference: Scored, *, resamples: int, seed: int = SEED) -> list[dict[str, Any]]:
    """The BLEU entries of `compare`, for each of many systems on the same resamples.

    Resamples are drawn in chunks, of which only each system's BLEU (R,) is kept; and only the sentences whose statistics differ from the
    reference's are summed. All sums are of whole numbers, so that the results equal those of `compare` to the last digit."""
    changes = []
    for system in systems:
        lines = np.flatnonzero((system.bleu_stats != reference.bleu_stats).any(axis=1))
        changes.append((lines, (system.bleu_stats[lines] - reference.bleu_stats[lines]).T))
    theirs, ours = np.empty(resamples), np.empty((len(systems), resamples))
    begin = 0
    for counts in resample_chunks(len(reference.bleu_stats), resamples, seed):
        chunk = slice(begin, begin + len(counts))
        sums = counts @ reference.bleu_stats
        theirs[chunk] = corpus_bleu(sums)
        by_sentence = np.ascontiguousarray(counts.T)  # (N, chunk): a sentence's counts lie together
        for row, (lines, change) in zip(ours, changes, strict=True):
            row[chunk] = corpus_bleu(sums + (change @ by_sentence[lines]).T) if len(lines) else theirs[chunk]
        begin = chunk.stop
    out = []
    for row, system in zip(ours, systems, strict=True):
        difference = system.bleu - reference.bleu
        out.append(
            {
                "bleu_ci95": interval(row),
                "bleu_difference": difference,
                "bleu_difference_ci95": interval(row - theirs),
                "bleu_p_value": p_value(row, theirs, difference),
            }
        )
    return out


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm 1979: each p-value adjusted for all that were tested together, in the order given, at most 1."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return [float(value) for value in adjusted]
