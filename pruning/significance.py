"""BLEU and chrF with signatures, and whether their differences are real: the paired bootstrap, vectorised over sacreBLEU's statistics.

Koehn 2004; the p-value is sacreBLEU's own (Moses' script): with the same resamples it equals `sacrebleu.significance` to rounding.
Letters: R resamples, N sentences, M statistics of a sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

Floats = NDArray[np.float64]
SEED = 12345  # sacreBLEU's default, so that its command line gives the same p-values


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
    return Scored(
        bleu.corpus_score(lines, one_reference).score,
        chrf.corpus_score(lines, one_reference).score,
        np.array(bleu._extract_corpus_statistics(lines, one_reference), dtype=np.float64),
        np.array(chrf._extract_corpus_statistics(lines, one_reference), dtype=np.float64),
        {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())},
    )


def resample_counts(sentences: int, resamples: int, seed: int = SEED) -> Floats:
    """(R, N): how often each sentence is in each resample; every row sums to N. The draws are sacreBLEU's."""
    chosen = np.random.default_rng(seed).choice(sentences, size=(resamples, sentences), replace=True)
    flat = chosen + np.arange(resamples)[:, None] * sentences
    return np.bincount(flat.ravel(), minlength=resamples * sentences).reshape(resamples, sentences).astype(np.float64)


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
