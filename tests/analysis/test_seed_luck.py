"""A lead between two methods is called where it is planted, and seldom where both are the same."""

import numpy as np
import pytest

from headgates.analysis.seed_luck import difference_of_means, seed_variance

LINES, SEEDS, DRAWS, RESAMPLES = 211, 3, 1200, 300
COUNTS = np.random.default_rng(7).multinomial(LINES, [1 / LINES] * LINES, size=RESAMPLES)


def called(generator, between_seeds, better=0.0) -> bool:
    """Whether two methods are called different. A method has lines that suit it, and so has each of its
    seeds. between_seeds: the luck of the seeds of each."""
    difficulty, lines = generator.normal(size=LINES), []  # (S, N) of 0 and 1, which each seed has right
    for number, luck in enumerate(between_seeds):
        suits = generator.normal(size=LINES) * 0.7
        own = generator.normal(size=(SEEDS, LINES)) * 0.7 + generator.normal(size=(SEEDS, 1)) * luck
        lines.append(difficulty + suits + own + better * (number == 0) > 0)
    values = [100 * each.mean(1) for each in lines]
    resampled = [100 * each @ COUNTS.T / LINES for each in lines]
    lucks = map(seed_variance, values, resampled)
    sampled = resampled[0].mean(0) - resampled[1].mean(0)
    (low, high), p = difference_of_means(values[0].mean() - values[1].mean(), sampled, *lucks)
    assert (p < 0.05) == (not low <= 0 <= high), "interval and p agree"
    return p < 0.05


@pytest.mark.parametrize("between_seeds", [(0.0, 0.0), (0.3, 0.3), (1.0, 0.05)])
def test_a_true_tie_is_called_a_lead_in_at_most_six_of_a_hundred(between_seeds):
    generator = np.random.default_rng(11)
    found = sum(called(generator, between_seeds) for _ in range(DRAWS))
    assert found / DRAWS <= 0.06 + 2 * (0.05 * 0.95 / DRAWS) ** 0.5  # two standard errors of 1,200 draws


def test_a_planted_lead_is_found():
    generator = np.random.default_rng(11)
    found = sum(called(generator, (0.1, 0.1), better=1.0) for _ in range(50))
    assert found >= 48


def test_without_any_luck_only_a_difference_of_zero_is_a_tie():
    still = np.zeros(RESAMPLES)
    assert difference_of_means(0.0, still, None, None) == ((0.0, 0.0), 1.0)
    assert difference_of_means(1.5, still, None, None)[1] == 0.0
