"""What a metric of a task is: sentence statistics that are summed, and the score of their sum. BLEU and chrF,
by sacreBLEU; accuracy.

A corpus score is a function of sums over sentences, so that a bootstrap resamples rows of statistics and
scores nothing anew. Letters: R resamples, N sentences, M statistics of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from headgates.analysis.extras import Extra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
else:
    np, Floats = Extra("numpy"), Any


@dataclass(frozen=True)
class Metric:
    """A score of outputs against references, higher is better.

    title: as tables call it. statistics(outputs, references, sources): (N, M); BLEU, chrF and accuracy do not
    read the sources. score(sums): the score of summed statistics (M,), to the last digit as its own library
    gives it. resampled(sums): the same (R,) for many sums (R, M) at once. signature: what made it.
    right_or_wrong: statistics are 1 where the line is right, and 1; then McNemar's test is given beside the
    bootstrap."""

    name: str
    title: str
    statistics: Callable[[Sequence[str], Sequence[str], Sequence[str]], Floats]
    score: Callable[[Sequence[float]], float]
    resampled: Callable[[Floats], Floats]
    signature: Callable[[], str]
    right_or_wrong: bool = False


# ---------------------------------------------------------------- BLEU and chrF


def sacre_metric(name: str, title: str, resampled: Callable[[Floats], Floats], **options: Any) -> Metric:
    """the metric of sacreBLEU of this name, made with the options."""

    def sacre() -> Any:
        return getattr(Extra(f"sacrebleu.metrics.{name}"), name.upper())(**options)

    def statistics(outputs: Sequence[str], references: Sequence[str], sources: Sequence[str] = ()) -> Floats:
        """Of BLEU (N, 10): lengths of hypothesis and reference, matches and totals of 1- to 4-grams. Of chrF
        (N, 18): hypothesis, reference and matching n-grams, 6 orders."""
        return np.array(
            sacre()._extract_corpus_statistics(list(outputs), [list(references)]), dtype=np.float64
        )

    def score(sums: Sequence[float]) -> float:
        return float(sacre()._compute_score_from_stats([*map(int, sums)]).score)

    def signature() -> str:
        metric = sacre()
        metric.corpus_score(["a"], [["a"]])  # the number of references is known once something was scored
        return str(metric.get_signature())

    return Metric(name, title, statistics, score, resampled, signature)


def resampled_bleu(stats: Floats) -> Floats:
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


def resampled_chrf(stats: Floats) -> Floats:
    """chrF2 (R,) of summed statistics (R, 18): the F2 of precision and recall averaged over the orders that
    occur."""
    hypothesis, reference, match = stats[:, 0::3], stats[:, 1::3], stats[:, 2::3]
    both = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(both.sum(axis=1), 1)
    precision = np.where(both, match / np.maximum(hypothesis, 1), 0).sum(axis=1) / orders
    recall = np.where(both, match / np.maximum(reference, 1), 0).sum(axis=1) / orders
    return 100 * 5 * precision * recall / np.maximum(4 * precision + recall, 1e-300)


BLEU = sacre_metric("bleu", "BLEU", resampled_bleu, force=True)
CHRF = sacre_metric("chrf", "chrF", resampled_chrf)
# Languages that write no spaces between words: sacreBLEU's usual tokenizer takes a sentence for a word. With
# MeCab sacreBLEU has a better one for Japanese; characters need no package. ISO 639-1 and, as NLLB, 639-3.
TOKENIZERS = dict.fromkeys(("zh", "zho", "cmn", "yue"), "zh") | dict.fromkeys(
    ("ja", "jpn", "th", "tha", "km", "khm", "lo", "lao", "my", "mya", "bo", "bod"), "char"
)


@cache
def bleu_of(language: str) -> Metric:
    """BLEU for outputs in a language, such as de, zh or zho_Hans, with its words as sacreBLEU cuts them."""
    tokenizer = TOKENIZERS.get(re.split("[-_]", language.lower())[0])
    return BLEU if tokenizer is None else sacre_metric("bleu", "BLEU", resampled_bleu, tokenize=tokenizer)


# ---------------------------------------------------------------- accuracy


def right_lines(outputs: Sequence[str], references: Sequence[str], sources: Sequence[str] = ()) -> Floats:
    """(N, 2): 1 where the line is its reference, else 0; and 1."""
    return np.array(
        [[ours == theirs, 1] for ours, theirs in zip(outputs, references, strict=True)], dtype=np.float64
    )


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    right_lines,
    lambda sums: 100 * sums[0] / sums[1],
    lambda sums: 100 * sums[:, 0] / sums[:, 1],
    lambda: "% of lines that equal their reference",
    right_or_wrong=True,
)
