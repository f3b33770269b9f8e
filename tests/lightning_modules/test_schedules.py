"""Learning-rate schedules against their formula."""

import pytest

from headgates.lightning_modules.optimizers import inverse_sqrt


@pytest.mark.parametrize("warmup", [1, 7, 4000])
def test_inverse_sqrt_is_vaswanis_formula_with_peak_one(warmup):
    for step in [0, 1, 5, 6, 7, 11, 3999, 4000, 100_003]:
        number = (
            step + 1
        )  # the paper counts from 1: d^-0.5 min(n^-0.5, n warmup^-1.5), over its value at n = warmup
        paper = min(number**-0.5, number * warmup**-1.5) / warmup**-0.5
        assert inverse_sqrt(step, warmup) == pytest.approx(paper)


def test_no_warm_up_begins_at_the_peak():
    assert inverse_sqrt(0, 0) == 1
