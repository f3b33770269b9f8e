"""The knee on planted curves, and its drops against a loop over resamples by sacreBLEU's own corpus score."""

import numpy as np
import pytest
import sacrebleu

from headgates.analysis.knee import Drop, drop, knee
from headgates.analysis.significance import resample_counts, score

NOUNS = [("dog", "man"), ("cat", "bird"), ("horse", "girl"), ("fox", "boy")]
REFERENCES = [
    f"the {a} {b} sees a {c} in the {d}" for a in ("old", "red") for b, c in NOUNS for d in ("house", "tree")
]


def worse(share: float, seed: int) -> list[str]:
    """The references with a word of this share of the lines replaced."""
    chosen = np.random.default_rng(seed).random(len(REFERENCES)) < share
    return [
        line.replace("sees", "hears") if changed else line
        for line, changed in zip(REFERENCES, chosen, strict=True)
    ]


def planted(heads: int, mean: float, bound: float) -> Drop:
    return Drop(heads, mean, bound, detectable=0.5)


def test_a_drop_is_that_of_sacrebleu_on_the_same_resamples():
    outputs, better = worse(0.5, 1), worse(0.2, 2)
    counts = resample_counts(len(REFERENCES), 200)
    found = drop(7, score(outputs, REFERENCES), score(better, REFERENCES), counts)
    drops = []
    for row in counts.astype(int):
        lines = np.repeat(np.arange(len(REFERENCES)), row)
        values = [
            sacrebleu.corpus_bleu([system[i] for i in lines], [[REFERENCES[i] for i in lines]]).score
            for system in (better, outputs)
        ]
        drops.append(values[0] - values[1])
    whole = [sacrebleu.corpus_bleu(system, [REFERENCES]).score for system in (better, outputs)]
    assert found.mean == pytest.approx(whole[0] - whole[1])
    assert found.bound == pytest.approx(sorted(drops)[190])  # at most 9 of 200 lie above it
    assert found.detectable == pytest.approx(2.4865 * np.std(drops, ddof=1), rel=1e-6)


def test_a_true_drop_of_the_detectable_size_is_found_in_four_of_five_samples():
    """The plan of the test on planted normal drops, whose standard error is 1: a one-sided test at 5%."""
    from headgates.analysis.knee import DETECTED

    drawn = np.random.default_rng(5).normal(DETECTED, 1.0, size=40_000)
    assert np.mean(drawn > 1.6449) == pytest.approx(0.80, abs=0.01)


def test_the_knee_of_a_planted_curve_is_where_it_bends():
    curve = [
        planted(48, -0.1, 0.3),
        planted(36, 0.1, 0.5),
        planted(24, 0.28, 0.9),
        planted(12, 0.9, 1.6),
        planted(6, 5.0, 6.0),
    ]
    assert knee(curve, 0.3) == curve[2]
    assert knee(curve, 1.0) == curve[3]
    assert knee(list(reversed(curve)), 0.3) == curve[2]


def test_a_lucky_mean_with_a_wide_bound_is_no_knee():
    assert knee([planted(48, 0.0, 0.4), planted(24, 0.2, 1.01)], 0.3) == planted(48, 0.0, 0.4)


def test_a_point_above_the_limit_between_acceptable_ones_does_not_end_the_search():
    assert knee([planted(36, 0.4, 0.8), planted(24, 0.2, 0.8)], 0.3).heads_open == 24


def test_where_no_point_is_acceptable_there_is_no_knee():
    assert knee([planted(24, 2.0, 3.0)], 0.3) is None
    assert knee([], 0.3) is None


@pytest.mark.parametrize("limit", [-0.1, float("nan"), float("inf")])
def test_a_limit_that_is_no_drop_is_refused(limit):
    with pytest.raises(ValueError, match="at least 0"):
        knee([planted(24, 0.0, 0.1)], limit)
