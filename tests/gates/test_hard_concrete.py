"""Hard Concrete: every formula against frequencies of its own samples, and the traps of implementing it."""

import pytest
import torch

from headgates.gates import HardConcrete
from headgates.gates.hard_concrete import full_prob, open_prob, sample_gate, test_gate

STRETCH = {"gamma": -0.1, "zeta": 1.1}
LOG_ALPHA = torch.tensor([-3.0, -1.1, 0.0, 0.7, 2.5])
DRAWS = 200_003


def draw(log_alpha, *, beta, gamma, zeta):
    u = torch.rand(DRAWS, len(log_alpha), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return sample_gate(log_alpha.double(), u, beta=beta, gamma=gamma, zeta=zeta)


def standard_error(p):
    return (p * (1 - p) / DRAWS).sqrt()


@pytest.mark.parametrize(
    "constants",
    [{"beta": 0.33, **STRETCH}, {"beta": 2 / 3, "gamma": -0.3, "zeta": 1.2}],
    ids=["Voita", "skewed"],
)
def test_open_prob_is_the_frequency_of_open_gates(constants):
    p = open_prob(LOG_ALPHA.double(), **constants)
    frequency = (draw(LOG_ALPHA, **constants) > 0).double().mean(0)
    assert ((frequency - p).abs() < 4 * standard_error(p)).all()


@pytest.mark.parametrize(
    "constants",
    [{"beta": 0.33, **STRETCH}, {"beta": 2 / 3, "gamma": -0.3, "zeta": 1.2}],
    ids=["Voita", "skewed"],
)
def test_full_prob_is_the_frequency_of_gates_at_one(constants):
    p = full_prob(LOG_ALPHA.double(), **constants)
    frequency = (draw(LOG_ALPHA, **constants) == 1).double().mean(0)
    assert ((frequency - p).abs() < 4 * standard_error(p)).all()


def test_samples_stay_in_the_unit_interval_and_reach_both_ends():
    xi = draw(LOG_ALPHA, beta=0.33, **STRETCH)
    assert (float(xi.min()), float(xi.max())) == (0.0, 1.0)


@pytest.mark.parametrize(("log_alpha", "xi"), [(-2.3985, 0.0), (2.3985, 1.0), (-40.0, 0.0), (40.0, 1.0)])
def test_the_test_gate_is_exactly_shut_or_open_beyond_2_398(log_alpha, xi):
    assert float(test_gate(torch.tensor(log_alpha), **STRETCH)) == xi


@pytest.mark.parametrize("log_alpha", [-2.397, 2.397])
def test_the_test_gate_lies_between_just_inside_2_398(log_alpha):
    assert 0 < float(test_gate(torch.tensor(log_alpha), **STRETCH)) < 1


def test_the_test_gate_does_not_know_the_temperature():
    a, b = HardConcrete(5, beta=0.33), HardConcrete(5, beta=0.9)
    with torch.no_grad():
        a.log_alpha.copy_(LOG_ALPHA)
        b.log_alpha.copy_(LOG_ALPHA)
    assert torch.equal(a.test_value(), b.test_value())


def test_the_decision_is_the_sign_of_log_alpha_for_a_symmetric_stretch():
    log_alpha = torch.tensor([-100.0, -2.0, -1e-3, 1e-3, 2.0, 100.0, 1e4])
    gate = HardConcrete(len(log_alpha))
    with torch.no_grad():
        gate.log_alpha.copy_(log_alpha)
    assert gate.decision().tolist() == (log_alpha > 0).tolist()


def test_the_decision_compares_the_frequencies_of_both_ends_for_a_skewed_stretch():
    constants = {"beta": 0.5, "gamma": -0.5, "zeta": 1.01}
    xi = draw(LOG_ALPHA, **constants)
    gate = HardConcrete(len(LOG_ALPHA), **constants)
    with torch.no_grad():
        gate.log_alpha.copy_(LOG_ALPHA)
    assert gate.decision().tolist() == ((xi == 1).sum(0) > (xi == 0).sum(0)).tolist()


def test_gates_start_fully_open():
    assert torch.equal(HardConcrete(5).test_value(), torch.ones(5))


def test_one_draw_serves_the_batch():
    assert HardConcrete(5).train()(rows=torch.arange(11), span=(0, 7)).shape == (5,)


def test_every_sample_has_fresh_noise():
    gate = HardConcrete(5, log_alpha=0.0)
    assert not torch.equal(gate.sample(), gate.sample())


def test_evaluation_draws_no_noise():
    gate = HardConcrete(5, log_alpha=0.3).eval()
    assert torch.equal(gate(), gate.test_value())


def test_the_sample_is_float32_and_finite_under_bfloat16_autocast():
    torch.manual_seed(0)
    gate = HardConcrete(20_011, log_alpha=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        xi = gate.sample()
    assert xi.dtype == torch.float32
    assert xi.isfinite().all()


def test_noise_at_the_ends_of_the_interval_gives_finite_gradients(monkeypatch):
    gate = HardConcrete(2, log_alpha=0.0)
    monkeypatch.setattr(torch, "rand_like", lambda *_, **__: torch.tensor([0.0, 1.0]))
    gate.sample().sum().backward()
    assert gate.log_alpha.grad.isfinite().all()


def test_the_noise_keeps_its_resolution_in_a_bfloat16_model():
    gate = HardConcrete(1009, log_alpha=0.0).to(torch.bfloat16)
    assert len(gate.sample().unique()) > 300  # bf16 has 256 numbers between 0.5 and 1


def test_the_gradient_of_a_loss_on_the_sample_is_the_derivative_of_the_formula():
    log_alpha = LOG_ALPHA.double().requires_grad_()
    u = torch.tensor([0.9, 0.8, 0.5, 0.3, 0.05], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: sample_gate(a, u, beta=0.33, **STRETCH), log_alpha)


def test_the_penalty_is_the_expected_number_of_target_heads():
    gate = HardConcrete(len(LOG_ALPHA))
    with torch.no_grad():
        gate.log_alpha.copy_(LOG_ALPHA)
    counts = (draw(LOG_ALPHA, beta=0.33, **STRETCH) > 0).double().sum(1)
    assert abs(float(counts.mean()) - gate.penalty().item()) < 4 * float(counts.std()) / DRAWS**0.5


def test_the_penalty_pulls_every_gate_down():
    gate = HardConcrete(5)
    gate.penalty().backward()
    assert (gate.log_alpha.grad > 0).all()


@pytest.mark.parametrize("stretch", [{"gamma": 0.0}, {"zeta": 1.0}, {"gamma": 0.1}])
def test_a_stretch_that_cannot_reach_0_and_1_is_refused(stretch):
    with pytest.raises(ValueError, match="need gamma < 0 < 1 < zeta"):
        HardConcrete(5, **stretch)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match="temperature"):
        HardConcrete(5, beta=0.0)


def test_a_binarised_gate_is_its_decision_in_training_and_gives_log_alpha_no_gradient():
    gate = HardConcrete(3)
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor([-0.5, 0.5, 3.0]))
    gate.binarise()
    assert gate.train()().tolist() == [0.0, 1.0, 1.0]
    assert not gate().requires_grad
