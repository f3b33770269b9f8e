"""The knee on planted curves, and its drops against a loop over resamples by sacreBLEU's own corpus score."""

import numpy as np
import pytest
import sacrebleu

from headgates.analysis.knee import Drop, drop, knee
from headgates.analysis.significance import resample_counts, score

REFERENCES = [
    f"the {a} {b} sees a {c}" for a in ("old", "red") for b in ("dog", "cat") for c in ("man", "boy", "fox")
]


def worse(share: float, seed: int) -> list[str]:
    """The references with a word of this share of the lines replaced."""
    chosen = np.random.default_rng(seed).random(len(REFERENCES)) < share
    return [
        line.replace("sees", "hears" if bad else "sees") for line, bad in zip(REFERENCES, chosen, strict=True)
    ]


def test_a_drop_is_that_of_sacrebleu_on_the_same_resamples():
    systems = worse(0.2, 2), worse(0.5, 1)
    counts = resample_counts(len(REFERENCES), 200)
    better, outputs = (score(each, REFERENCES) for each in systems)
    found = drop(7, outputs, better, counts)

    def difference(lines) -> float:
        references = [[REFERENCES[i] for i in lines]]
        values = [sacrebleu.corpus_bleu([each[i] for i in lines], references).score for each in systems]
        return values[0] - values[1]

    lines = np.arange(len(REFERENCES))
    drops = [difference(np.repeat(lines, row)) for row in counts.astype(int)]
    assert found.mean == pytest.approx(difference(lines))
    assert found.bound == pytest.approx(sorted(drops)[190])  # at most 9 of 200 lie above it
    assert found.detectable == pytest.approx(
        2.4865 * np.std(drops, ddof=1), rel=1e-6
    )  # the quantiles of .95 and .80
    assert drop(7, outputs, better, counts, metric="chrf").mean == better["chrf"] - outputs["chrf"]


CURVE = [(48, -0.1, 0.3), (36, 0.1, 0.5), (24, 0.28, 0.9), (12, 0.9, 1.6), (6, 5.0, 6.0)]


@pytest.mark.parametrize(
    ("points", "max_drop", "heads"),
    [
        (CURVE, 0.3, 24),  # where it bends
        (CURVE, 1.0, 12),
        ([(48, 0.0, 0.4), (24, 0.2, 1.01)], 0.3, 48),  # a lucky mean with a wide bound is no knee
        ([(36, 0.4, 0.8), (24, 0.2, 0.8)], 0.3, 24),  # a point above the limit does not end the search
        ([], 0.3, None),
    ],
)
def test_the_knee_is_the_acceptable_point_with_the_fewest_heads(points, max_drop, heads):
    found = knee([Drop(*point, detectable=0.5) for point in points], max_drop)
    assert (found and found.heads_open) == heads


@pytest.mark.parametrize("limit", [-0.1, float("nan"), float("inf")])
def test_a_limit_that_is_no_drop_is_refused(limit):
    with pytest.raises(ValueError, match="at least 0"):
        knee([], limit)
