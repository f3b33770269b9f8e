"""CPR and CMD against sums over a fine grid, and on lines whose areas are known."""

import numpy as np
import pytest
from scipy.integrate import trapezoid

from headgates.analysis.circuit_areas import LEAST, circuit_areas


@pytest.mark.parametrize(
    "metric",
    [
        {0: 2.0, 1: 30.0},
        {0: 0.0, 0.1: 3.0, 0.3: 25.0, 0.5: 41.0, 0.7: 36.0, 1: 38.0},  # above the whole model on its way
        {0: 5.0, 0.0005: 1.0, 0.2: 9.0, 1: 3.0},  # the whole model is the worst, and a share below the least
    ],
)
def test_the_areas_are_those_under_f_and_its_distance_from_1(metric):
    k = np.linspace(LEAST, 1, 200_000)
    m = np.interp(k, sorted(metric), [metric[share] for share in sorted(metric)])
    f = (m - metric[0]) / (metric[1] - metric[0])
    assert circuit_areas(metric) == pytest.approx((trapezoid(f, k), trapezoid(abs(1 - f), k)), abs=1e-6)


def test_a_curve_that_does_not_go_to_no_head_or_stays_level_is_refused():
    with pytest.raises(ValueError, match="from no head open"):
        circuit_areas({0.1: 2.0, 1: 3.0})
    with pytest.raises(ValueError, match="with all heads and with none"):
        circuit_areas({0: 2.0, 0.5: 3.0, 1: 2.0})
