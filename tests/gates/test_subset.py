"""Gates that keep exactly K heads: the soft top-K against a solver and finite differences, and what a sample
over all sites holds."""

import math

import pytest
import torch
from scipy.optimize import brentq

from headgates.gates import GATES, HeadMap, Subset, attach, find_sites
from headgates.gates.base import hard_top_k
from headgates.gates.subset import soft_top_k

SCORES = torch.tensor([0.3, -1.2, 2.0, 0.31, 0.0, -0.4, 1.1], dtype=torch.float64)
KINDS = {"enc-self": 2, "dec-self": 0, "cross": 5}


def asked(bank):
    return torch.cat([gate() for _, gate in bank.items()])


@pytest.mark.parametrize("temperature", [0.3, 4.0])
@pytest.mark.parametrize("k", range(1, 7))
def test_soft_gates_are_sigmoids_whose_threshold_a_root_finder_has(k, temperature):
    def at(tau):
        return [1 / (1 + math.exp(-(score - tau) / temperature)) for score in SCORES.tolist()]

    soft = soft_top_k(SCORES, k, temperature)
    assert soft.sum().item() == pytest.approx(k, abs=1e-12)
    tau = brentq(lambda tau: sum(at(tau)) - k, -50, 50, xtol=1e-14)
    assert soft.tolist() == pytest.approx(at(tau))


@pytest.mark.parametrize("k", [0, 7])
def test_none_and_all_heads_are_exact_and_give_no_gradient(k):
    scores = SCORES.clone().requires_grad_()
    soft = soft_top_k(scores, k, 0.5)
    assert soft.tolist() == [float(k > 0)] * 7
    soft.square().sum().backward()
    assert not scores.grad.any()


def test_its_gradient_is_that_of_finite_differences():
    assert torch.autograd.gradcheck(
        lambda scores: soft_top_k(scores, 3, 0.3), SCORES.clone().requires_grad_()
    )


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300])
def test_low_temperatures_give_the_hard_choice_and_finite_gradients(temperature):
    scores = (SCORES * 100).requires_grad_()
    soft = soft_top_k(scores, 3, temperature)
    torch.testing.assert_close(soft, hard_top_k(SCORES, 3))
    soft.square().sum().backward()
    assert scores.grad.isfinite().all()


def test_of_equal_scores_the_earlier_are_open():
    assert hard_top_k(torch.tensor([1.0, 2.0, 1.0, 1.0]), 2).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("k", [0, 7, 18])
def test_exactly_k_heads_over_all_sites_are_open_in_training_and_in_evaluation(model, k):
    bank = attach(model.train(), gate="subset", target_heads=k)
    seen = set()
    for _ in range(9):
        bank.sample()
        xi = asked(bank)
        assert ((xi == 0) | (xi == 1)).all()
        assert xi.sum() == k
        seen.add(tuple(int(gate().sum()) for _, gate in bank.items()))
    assert (len(seen) > 1) == (k == 7)  # sites have numbers of their own
    model.eval()
    assert asked(bank).sum() == bank.open().count() == bank.penalty() == k
    assert torch.equal(asked(bank), bank.open().flat().float())


def test_a_sample_takes_the_highest_of_scores_and_gumbel_noise_with_the_gradient_of_soft_gates(model):
    start = HeadMap({site: torch.linspace(-1, 1, site.heads) for site in find_sites(model)})
    options = {"temperature": 0.7, "anneal_steps": 0, "final_temperature": 0.7}
    bank = attach(model.train(), gate="subset", target_heads=7, score=start, **options)
    torch.manual_seed(3)
    bank.sample()
    worth = torch.linspace(-1, 2, 18)
    xi = asked(bank)
    (xi * worth).sum().backward()
    torch.manual_seed(3)
    noisy = start.flat() - torch.log(-torch.log(torch.rand(18, dtype=torch.float64)))
    assert set(xi.nonzero().flatten().tolist()) == set(noisy.argsort(descending=True)[:7].tolist())
    (expected,) = torch.autograd.grad((soft_top_k(noisy.requires_grad_(), 7, 0.7) * worth).sum(), noisy)
    got = torch.cat([gate.score.grad for _, gate in bank.items()])
    torch.testing.assert_close(got, expected.float())


def test_the_temperature_falls_log_linearly_with_the_samples_and_is_kept(model):
    options = {"final_temperature": 0.01, "anneal_steps": 4}
    bank = attach(model.train(), gate="subset", target_heads=7, temperature=1.0, **options)
    gate = next(gate for _, gate in bank.items())
    seen = []
    for _ in range(6):
        seen.append(gate.temperature)
        bank.sample()
    assert seen == pytest.approx([1, 10**-0.5, 0.1, 10**-1.5, 0.01, 0.01])
    other = GATES["subset"](gate.heads, **options)
    other.load_state_dict(gate.state_dict())
    assert other.temperature == pytest.approx(0.01)


def test_temperatures_must_be_above_0():
    with pytest.raises(ValueError, match="expected temperatures above 0"):
        Subset(3, target_heads=1, final_temperature=0.0)
