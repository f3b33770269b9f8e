"""A lead between two methods is called where it is planted, and seldom where both are the same."""

import numpy as np
import pytest

from headgates.analysis.seed_luck import difference_of_means, seed_variance

LINES, SEEDS, DRAWS, RESAMPLES = 211, 3, 400, 300
COUNTS = np.random.default_rng(7).multinomial(LINES, [1 / LINES] * LINES, size=RESAMPLES)


def called(generator, *, between_seeds, pool=2, better=0.0) -> bool:
    """Whether the first of `pool` methods is called different from the second. A method has lines that suit
    it, and so has each of its seeds."""
    difficulty, lines = (
        generator.normal(size=LINES),
        [],
    )  # lines: (S, N) of 0 and 1, which each seed has right
    for number in range(pool):
        suits = generator.normal(size=LINES) * 0.7
        own = generator.normal(size=(SEEDS, LINES)) * 0.7
        luck = generator.normal(size=(SEEDS, 1)) * between_seeds
        lines.append(difficulty + suits + own + luck + better * (number == 0) > 0)
    values = [100 * each.mean(1) for each in lines]
    resampled = [list(100 * each @ COUNTS.T / LINES) for each in lines]
    luck = seed_variance(values, resampled), SEEDS
    sampled = np.mean(resampled[0], axis=0) - np.mean(resampled[1], axis=0)
    (low, high), p = difference_of_means(values[0].mean() - values[1].mean(), sampled, [luck, luck])
    assert (p < 0.05) == (not low <= 0 <= high), "interval and p agree"
    return p < 0.05


@pytest.mark.parametrize("between_seeds", [0.0, 0.3])
@pytest.mark.parametrize("pool", [2, 5])
def test_a_true_tie_is_called_a_lead_in_at_most_six_of_a_hundred(between_seeds, pool):
    generator = np.random.default_rng(11)
    found = sum(called(generator, pool=pool, between_seeds=between_seeds) for _ in range(DRAWS))
    assert found / DRAWS <= 0.06 + 2 * (0.05 * 0.95 / DRAWS) ** 0.5  # two standard errors of 400 draws


def test_a_planted_lead_is_found():
    generator = np.random.default_rng(11)
    found = sum(called(generator, better=1.0, between_seeds=0.1) for _ in range(50))
    assert found == 50


def test_without_any_luck_only_a_difference_of_zero_is_a_tie():
    still = np.zeros(RESAMPLES)
    assert difference_of_means(0.0, still, [(None, 1), (None, 1)]) == ((0.0, 0.0), 1.0)
    assert difference_of_means(1.5, still, [(None, 1), (None, 1)])[1] == 0.0
