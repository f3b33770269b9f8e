"""Hard Concrete: every formula against frequencies of its own samples, and the traps of implementing it."""

import pytest
import torch

from headgates.gates import HardConcrete
from headgates.gates.hard_concrete import full_prob, open_prob, sample_gate, test_gate

VOITA = {"beta": 0.33, "gamma": -0.1, "zeta": 1.1}
SKEWED = {"beta": 2 / 3, "gamma": -0.3, "zeta": 1.2}
LOG_ALPHA = torch.tensor([-3.0, -1.1, 0.0, 0.7, 2.5], dtype=torch.float64)
SAMPLES = 50_021


def samples(**constants):
    u = torch.rand(SAMPLES, len(LOG_ALPHA), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return sample_gate(LOG_ALPHA, u, **constants)


def gate_at(log_alpha, **options) -> HardConcrete:
    return HardConcrete(len(log_alpha), log_alpha=torch.as_tensor(log_alpha), **options)


@pytest.mark.parametrize(("formula", "end"), [(open_prob, 0), (full_prob, 1)])
@pytest.mark.parametrize("constants", [VOITA, SKEWED], ids=["Voita", "skewed"])
def test_the_probabilities_of_both_ends_are_the_frequencies_of_samples(constants, formula, end):
    xi, p = samples(**constants), formula(LOG_ALPHA, **constants)
    frequency = (xi == 1 if end else xi > 0).double().mean(0)
    assert ((frequency - p).abs() < 4 * (p * (1 - p) / SAMPLES).sqrt()).all()
    assert (float(xi.min()), float(xi.max())) == (0.0, 1.0)


def test_a_gate_samples_both_tails_as_often_as_its_formulae_say():
    torch.manual_seed(11)
    for log_alpha, tail in ((2.6, lambda xi: xi == 0), (-2.6, lambda xi: xi == 1)):  # each 3% of the samples
        gate = gate_at([log_alpha] * SAMPLES)
        p = (1 - gate.open_prob() if log_alpha > 0 else gate.full_prob())[0].item()
        assert abs(tail(gate.sample()).double().mean() - p) < 4 * (p * (1 - p) / SAMPLES) ** 0.5


@pytest.mark.parametrize(
    ("log_alpha", "xi"), [(-2.3985, 0.0), (2.3985, 1.0), (-40.0, 0.0), (40.0, 1.0), (0.0, 0.5)]
)
def test_the_test_gate_is_exactly_shut_or_open_beyond_2_398(log_alpha, xi):
    at = lambda number: float(test_gate(torch.tensor(number), gamma=-0.1, zeta=1.1))  # noqa: E731
    assert at(log_alpha) == pytest.approx(xi, abs=0 if xi in (0, 1) else 1e-6)
    assert 0 < at(2.397) < 1
    assert 0 < at(-2.397) < 1


def test_the_decision_compares_the_frequencies_of_both_ends_for_a_skewed_stretch():
    constants = {"beta": 0.5, "gamma": -0.5, "zeta": 1.01}
    xi = samples(**constants)
    likelier = (xi == 1).sum(0) > (xi == 0).sum(0)
    assert gate_at(LOG_ALPHA, **constants).decision().tolist() == likelier.tolist()


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((each, "need gamma < 0 < 1 < zeta") for each in ({"gamma": 0.0}, {"zeta": 1.0}, {"gamma": 0.1})),
        ({"beta": 0.0}, "need a temperature beta > 0"),
    ],
)
def test_a_stretch_or_temperature_that_is_no_hard_concrete_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HardConcrete(5, **options)
