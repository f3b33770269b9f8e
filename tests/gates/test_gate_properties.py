"""Gates with any numbers of heads and any constants: penalties are probabilities, subsets open exactly K,
masks are what was assigned."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headgates.gates import GATES, HardConcrete, HeadMap, HeadSite, Subset
from headgates.gates.hard_concrete import full_prob, open_prob, sample_gate
from headgates.gates.mask import HeadMask

few = settings(max_examples=40, deadline=None, derandomize=True, database=None)
LOG_ALPHAS = st.lists(st.floats(-8, 8), min_size=1, max_size=5)
STRETCHES = {"beta": st.floats(0.05, 3), "gamma": st.floats(-2, -0.01), "zeta": st.floats(1.01, 3)}
POINTS = 100_000  # of the integral over u: xi only rises with u, so the integral is right to one of so many


@few
@given(LOG_ALPHAS, st.fixed_dictionaries(STRETCHES))
def test_the_probabilities_are_integrals_over_the_noise(log_alphas, constants):
    log_alpha = torch.tensor(log_alphas, dtype=torch.float64)
    u = (torch.arange(POINTS, dtype=torch.float64)[:, None] + 0.5) / POINTS
    xi = sample_gate(log_alpha, u, **constants)  # (POINTS, H)
    assert ((xi >= 0) & (xi <= 1)).all()
    for probability, frequency in (
        (open_prob, (xi > 0).double().mean(0)),
        (full_prob, (xi == 1).double().mean(0)),
    ):
        assert ((probability(log_alpha, **constants) - frequency).abs() <= 1.001 / POINTS).all()


@few
@given(LOG_ALPHAS, st.fixed_dictionaries(STRETCHES), st.integers(0, 99))
def test_the_penalty_is_the_sum_of_the_integrals_and_every_xi_is_in_the_unit_interval(
    log_alphas, constants, seed
):
    gate = HardConcrete(len(log_alphas), torch.tensor(log_alphas), **constants)
    u = (torch.arange(POINTS)[:, None] + 0.5) / POINTS
    integral = (sample_gate(gate.log_alpha.detach(), u, **constants) > 0).float().mean(0).sum()
    assert float(gate.penalty().detach()) == pytest.approx(float(integral), abs=1e-4 * len(log_alphas))
    torch.manual_seed(seed)
    for xi in (gate.sample(), gate.test_value()):
        assert xi.shape == (len(log_alphas),)
        assert ((xi >= 0) & (xi <= 1)).all()


@few
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=6), st.data())
def test_a_subset_opens_exactly_so_many_in_every_draw_and_at_test_time(scores, data):
    k = data.draw(st.integers(0, sum(map(len, scores))))
    temperature = data.draw(st.floats(0.01, 5))
    gates = [
        Subset(len(row), k, torch.tensor(row), temperature, temperature / 3, anneal_steps=3) for row in scores
    ]
    for gate in gates:
        gate.join(gates)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    for _ in range(5):
        xi = torch.cat(Subset.draw(gates)).detach()
        assert sorted(xi.round(decimals=5).unique().tolist()) in ([0.0], [1.0], [0.0, 1.0])
        assert int(xi.round().sum()) == k
    for values in ([gate.test_value() for gate in gates], [gate.decision().float() for gate in gates]):
        assert torch.cat(values).sum() == k


@few
@given(st.sampled_from(sorted(GATES)), st.integers(1, 7), st.integers(0, 99))
def test_every_kind_gives_a_number_in_the_unit_interval_for_every_head(kind, heads, seed):
    torch.manual_seed(seed)
    gate = GATES[kind](heads)
    for xi in (gate.train()(), gate.eval()()):
        assert xi.shape == (heads,)
        assert ((xi >= 0) & (xi <= 1)).all()
    assert 0 <= float(gate.penalty().detach()) <= heads


@few
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=7))
def test_a_mask_is_what_was_assigned(values):
    gate = HeadMask(len(values))
    gate.assign(torch.tensor(values, dtype=torch.float64))
    expected = torch.tensor(values)
    assert torch.equal(gate.train()().float(), expected)
    assert torch.equal(gate.eval()().float(), expected)
    row = HeadMap({HeadSite.at("cross", 0, len(values)): values})
    assert float(gate.penalty()) == row.count()
