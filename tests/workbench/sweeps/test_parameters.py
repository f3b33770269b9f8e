"""The trials of a sweep: a grid against the slow way, draws against scipy's own quantiles, and what never
changes about them."""

import math
from collections import Counter
from pathlib import Path

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from headgates.workbench.sweeps.parameters import INSTEAD, Parameter, uniform
from headgates.workbench.sweeps.sweep_file import parse_sweep

steady = settings(max_examples=60, deadline=None, derandomize=True, database=None)
GRID = {
    "lambda": {"values": [0.1, 0.2, 0.3]},
    "seed": {"min": 2, "max": 3},
    "systems": {"value": "base"},
    "kinds": {"values": ["cross"]},
}


def sweep(method: str, parameters: dict, **keys):
    return parse_sweep(
        {"program": "fit.py", "method": method, "parameters": parameters, **keys}, Path("here.yaml")
    )


# ---------------------------------------------------------------- grid


def test_a_grid_is_every_combination_and_the_last_parameter_changes_fastest():
    expected = []
    for lam in (0.1, 0.2, 0.3):
        for seed in (2, 3):
            expected.append({"lambda": lam, "seed": seed, "systems": "base", "kinds": "cross"})
    made = sweep("grid", GRID).draws(seed=5, count=0)
    assert [draw.values for draw in made] == expected
    assert [draw.number for draw in made] == [1, 2, 3, 4, 5, 6]
    assert list(made[0].values) == list(GRID), (
        "parameters stand on the command line as they stand in the file"
    )


def test_the_count_beats_the_run_cap_and_both_cut_a_grid():
    assert len(sweep("grid", GRID, run_cap=4).draws(seed=1, count=0)) == 4
    assert len(sweep("grid", GRID, run_cap=4).draws(seed=1, count=5)) == 5
    assert len(sweep("grid", GRID).draws(seed=1, count=100)) == 6


def test_q_uniform_in_a_grid_leaves_its_upper_bound_out_as_wandb_does():
    made = sweep("grid", {"lambda": {"distribution": "q_uniform", "min": 1, "max": 2.5, "q": 0.5}}).draws(
        seed=1, count=0
    )
    assert [draw.values["lambda"] for draw in made] == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("count", [0, 3])
def test_a_grid_that_no_one_can_have_meant_is_refused(count):
    with pytest.raises(ValueError, match=r"here.yaml: a grid of more than 10,000 trials"):
        sweep("grid", {"seed": {"min": 0, "max": 1_000_000}, "lambda": {"values": [1, 2]}}).draws(
            seed=1, count=count
        )


def test_a_repeated_value_is_a_trial_that_is_skipped():
    made = sweep("grid", {"seed": {"values": [3, 5, 3]}}).draws(seed=1, count=0)
    assert [draw.same_as for draw in made] == [None, None, 1]


# ---------------------------------------------------------------- random


def test_a_random_sweep_without_an_end_is_refused():
    with pytest.raises(
        ValueError, match="method random draws for ever; give --count, or run_cap in the file"
    ):
        sweep("random", GRID).draws(seed=1, count=0)
    assert len(sweep("random", GRID).draws(seed=1, count=7)) == 7
    assert len(sweep("random", GRID, run_cap=3).draws(seed=1, count=0)) == 3


@steady
@given(seed=st.integers(0, 2**32), few=st.integers(1, 7), more=st.integers(0, 7))
def test_a_trial_never_changes_when_there_are_more_of_them_or_another_parameter(seed, few, more):
    first = sweep("random", GRID).draws(seed=seed, count=few)
    again = sweep("random", GRID).draws(seed=seed, count=few + more)
    assert again[:few] == first
    wider = sweep("random", {"data": {"values": ["a", "b"]}, **GRID}).draws(seed=seed, count=few)
    assert [{name: draw.values[name] for name in GRID} for draw in wider] == [draw.values for draw in first]


def test_another_seed_draws_other_trials():
    space = {"lambda": {"min": 0.0, "max": 1.0}}
    one, two = (
        [draw.values["lambda"] for draw in sweep("random", space).draws(seed=seed, count=11)]
        for seed in (1, 2)
    )
    assert not set(one) & set(two)
    assert len(set(one)) == 11


def test_a_draw_that_repeats_an_earlier_one_names_it():
    made = sweep("random", {"seed": {"values": [1, 2]}, "lambda": {"values": [0.1, 0.2]}}).draws(
        seed=1, count=23
    )
    for draw in made:
        same = [other.number for other in made[: draw.number - 1] if other.values == draw.values]
        assert draw.same_as == (same[0] if same else None)
    assert sum(draw.same_as is None for draw in made) == 4, "all four combinations are drawn in 23"


def test_what_uniform_draws_is_inside_the_open_interval_and_even():
    numbers = [uniform(7, number, "lambda") for number in range(1, 2001)]
    assert 0 < min(numbers) < max(numbers) < 1
    assert scipy.stats.kstest(numbers, "uniform").pvalue > 0.01
    assert abs(
        scipy.stats.pearsonr(numbers, [uniform(7, number, "seed") for number in range(1, 2001)]).statistic
    ) < 4 / math.sqrt(2000)


LOW, HIGH = 0.003, 0.7
DISTRIBUTIONS = {
    "uniform": ({"min": LOW, "max": HIGH}, scipy.stats.uniform(LOW, HIGH - LOW)),
    "log_uniform_values": ({"min": LOW, "max": HIGH}, scipy.stats.loguniform(LOW, HIGH)),
    "normal": ({"mu": 0.3, "sigma": 1.7}, scipy.stats.norm(0.3, 1.7)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@steady
@given(u=st.floats(1e-9, 1 - 1e-9))
def test_a_draw_is_the_quantile_of_its_distribution(name, u):
    numbers, theirs = DISTRIBUTIONS[name]
    value = Parameter("lambda", name, numbers).quantile(u)
    assert value == pytest.approx(float(theirs.ppf(u)), rel=1e-9, abs=1e-12)
    low, high = theirs.support()
    assert low * (1 - 1e-12) <= value <= high * (1 + 1e-12)


@steady
@given(u=st.floats(1e-6, 1 - 1e-6), q=st.sampled_from([1, 3, 1.0, 0.25]))
def test_a_quantised_draw_is_the_nearest_multiple_and_whole_where_q_is(u, q):
    value = Parameter("lambda", "q_uniform", {"min": LOW, "max": HIGH + 7, "q": q}).quantile(u)
    assert abs(value - (LOW + u * (HIGH + 7 - LOW))) <= q / 2 * (1 + 1e-6)
    assert value / q == round(value / q)
    assert type(value) is type(q)


@steady
@given(low=st.integers(-50, 50), width=st.integers(1, 9), u=st.floats(1e-9, 1 - 1e-9))
def test_whole_numbers_are_drawn_from_both_bounds_and_all_between(low, width, u):
    value = Parameter("seed", "int_uniform", {"min": low, "max": low + width}).quantile(u)
    assert type(value) is int
    assert (
        value == scipy.stats.randint(low, low + width + 1).ppf(u)
        or abs(u * (width + 1) - round(u * (width + 1))) < 1e-6
    )


def test_listed_values_come_as_often_as_their_probabilities_say():
    shares = {"a": 0.2, "b": 0.0, "c": 0.5, "d": 0.3}
    weighted = Parameter(
        "data",
        "categorical_w_probabilities",
        {"values": list(shares), "probabilities": list(shares.values())},
    )
    even = Parameter("data", "categorical", {"values": list(shares)})
    n = 1000
    points = [(k + 0.5) / n for k in range(n)]
    assert Counter(weighted.quantile(u) for u in points) == {"a": 200, "c": 500, "d": 300}
    assert Counter(even.quantile(u) for u in points) == dict.fromkeys("abcd", 250)


@pytest.mark.parametrize("name", INSTEAD)
def test_a_distribution_that_is_not_here_is_refused_with_one_that_is(name):
    with pytest.raises(
        ValueError,
        match=rf"parameters.lambda: distribution {name} is not supported locally; take (log_un|un|n)",
    ):
        sweep("random", {"lambda": {"distribution": name, "min": 0.1, "max": 0.2}})
