"""Convergence as the house defines it."""

import pytest

from headgates.lightning_modules.convergence import is_converged


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.0] * 4, None),  # no four epochs to look back on yet
        ([2.0] * 5, True),
        ([2.0, 1.99, 1.99, 1.99, 1.989], False),  # 0.55% in four epochs
        ([2.0, 1.999, 1.998, 1.997, 1.991], True),  # 0.45%
        ([3.0, 2.0, 2.0, 2.0, 2.0, 1.9905], True),
        ([2.0, 1.9, 2.1, 2.2, 2.3, 2.4, 2.5], True),  # it rises: nothing was gained for four epochs
        ([2.0, 1.0, 2.0, 2.0, 2.0], False),  # the best came within the last four
    ],
)
def test_converged_is_a_fall_of_less_than_half_a_percent_in_four_epochs(losses, expected):
    assert is_converged(losses) is expected
