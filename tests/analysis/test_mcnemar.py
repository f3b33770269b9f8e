"""McNemar's exact test against SciPy's binomial test, and how often it rejects where nothing differs."""

import numpy as np
import pytest
from scipy.stats import binomtest

from headgates.analysis.metrics import ACCURACY, BLEU
from headgates.analysis.significance import compare, compare_many, mcnemar_p_value, resample_counts, score

N, R = 211, 60


def outputs(right: np.ndarray) -> list[str]:
    return ["yes" if each else "no" for each in right]


@pytest.mark.parametrize(
    "alone", [(0, 0), (0, 1), (1, 1), (0, 9), (3, 9), (9, 3), (20, 20), (0, 60), (1100, 1023)]
)
def test_it_is_the_binomial_test_of_the_lines_that_one_system_alone_has_right(alone):
    ours, theirs = (
        np.concatenate([np.full(n, each) for n, each in zip((*alone, 7, 5), row, strict=True)])
        for row in ((1, 0, 1, 0), (0, 1, 1, 0))
    )
    expected = binomtest(alone[0], sum(alone), 0.5).pvalue if sum(alone) else 1.0
    assert mcnemar_p_value(ours, theirs) == pytest.approx(expected)


def test_it_stands_beside_the_bootstrap_where_lines_are_right_or_wrong():
    rng = np.random.default_rng(1)
    right = [rng.random(N) < share for share in (0.8, 0.7, 0.8)]
    base, *systems = (score(outputs(each), ["yes"] * N, [ACCURACY]) for each in right)
    counts = resample_counts(N, R)
    for system, own in zip(systems, right[1:], strict=True):
        found = compare(system, base, counts)
        assert found["accuracy_p_mcnemar"] == pytest.approx(
            binomtest(int((own & ~right[0]).sum()), int((own != right[0]).sum())).pvalue
        )
    assert compare_many(systems, base, resamples=R) == [compare(system, base, counts) for system in systems]
    translated = score(outputs(right[0]), ["yes"] * N, [BLEU])
    assert not any("mcnemar" in name for name in compare(translated, translated, counts))


def test_it_rejects_at_most_its_level_where_systems_differ_by_noise_alone():
    rng = np.random.default_rng(2)
    draws = [(rng.random(N) < 0.85, rng.random(N) < 0.85) for _ in range(1000)]
    rejected = np.mean([mcnemar_p_value(ours, theirs) < 0.05 for ours, theirs in draws])
    assert (
        0.02 < rejected < 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5
    )  # exact, so below its level rather than at it
