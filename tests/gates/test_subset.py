"""Gates that keep exactly K heads: the soft top-K against a solver and finite differences, and what a draw
over all sites holds."""

import copy
import math

import pytest
import torch
from scipy.optimize import brentq

from headgates.gates import GATES, HeadMap, Subset, attach, find_sites
from headgates.gates.base import hard_top_k
from headgates.gates.subset import soft_top_k

SCORES = torch.tensor([0.3, -1.2, 2.0, 0.31, 0.0, -0.4, 1.1], dtype=torch.float64)
KINDS = {"enc-self": 2, "dec-self": 0, "cross": 5}


def solved(scores, k, temperature):
    """The same numbers by scipy's root finder."""

    def surplus(tau):
        return sum(1 / (1 + math.exp(-(s - tau) / temperature)) for s in scores.tolist()) - k

    tau = brentq(surplus, -50, 50, xtol=1e-14)
    return torch.tensor(
        [1 / (1 + math.exp(-(s - tau) / temperature)) for s in scores.tolist()], dtype=torch.float64
    )


def asked(bank):
    return torch.cat([gate() for _, gate in bank.items()])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("k", range(1, 7))
def test_soft_gates_add_up_to_k_and_none_is_above_1(k, temperature):
    soft = soft_top_k(SCORES, k, temperature)
    assert soft.sum().item() == pytest.approx(k, abs=1e-12)
    assert ((soft > 0) & (soft < 1)).all()
    torch.testing.assert_close(soft, solved(SCORES, k, temperature))


@pytest.mark.parametrize("k", [0, 7])
def test_none_and_all_heads_are_exact_and_give_no_gradient(k):
    scores = SCORES.clone().requires_grad_()
    soft = soft_top_k(scores, k, 0.5)
    assert torch.equal(soft, torch.full((7,), float(k > 0), dtype=torch.float64))
    soft.square().sum().backward()
    assert not scores.grad.any()


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_its_gradient_is_that_of_finite_differences(temperature):
    worth = torch.linspace(-1, 2, 7, dtype=torch.float64)

    def objective(scores):
        return (soft_top_k(scores, 3, temperature) * worth).sum().square()

    scores = SCORES.clone().requires_grad_()
    (got,) = torch.autograd.grad(objective(scores), scores)
    steps = 1e-6 * torch.eye(7, dtype=torch.float64)
    expected = torch.stack([(objective(SCORES + step) - objective(SCORES - step)) / 2e-6 for step in steps])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 1e-300])
def test_low_temperatures_give_the_hard_choice_and_finite_gradients(temperature):
    scores = (SCORES * 100).requires_grad_()
    soft = soft_top_k(scores, 3, temperature)
    torch.testing.assert_close(soft, hard_top_k(SCORES, 3))
    soft.square().sum().backward()
    assert scores.grad.isfinite().all()


def test_of_equal_scores_the_earlier_are_open():
    assert hard_top_k(torch.tensor([1.0, 2.0, 1.0, 1.0]), 2).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("k", [0, 1, 7, 18])
def test_exactly_k_heads_are_open_in_training_and_in_evaluation(model, batch, k):
    bank = attach(model.train(), gate="subset", target_heads=k)
    seen = set()
    for _ in range(9):
        bank.sample()
        xi = asked(bank)
        assert ((xi == 0) | (xi == 1)).all()
        assert xi.sum() == k
        seen.add(tuple(xi.tolist()))
    assert len(seen) > 1 or k in (0, 18)  # draws differ
    model.eval()
    assert asked(bank).sum() == bank.open().count() == bank.penalty() == k
    assert torch.equal(asked(bank), bank.open().flat().float())


def test_one_draw_over_all_sites_gives_each_a_number_of_its_own(model):
    bank = attach(model.train(), gate="subset", target_heads=7)
    by_site = set()
    for _ in range(9):
        bank.sample()
        by_site.add(tuple(int(gate().sum()) for _, gate in bank.items()))
    assert len(by_site) > 1
    assert all(sum(each) == 7 for each in by_site)


def test_the_draw_takes_the_highest_of_scores_and_gumbel_noise(model):
    start = HeadMap({site: torch.linspace(-1, 1, site.heads) for site in find_sites(model)})
    bank = attach(model.train(), gate="subset", target_heads=7, score=start)
    torch.manual_seed(3)
    bank.sample()
    torch.manual_seed(3)
    u = torch.rand(18, dtype=torch.float64)
    noisy = start.flat() - torch.log(-torch.log(u))
    assert set(asked(bank).nonzero().flatten().tolist()) == set(noisy.argsort(descending=True)[:7].tolist())


def test_the_gradient_of_a_draw_is_that_of_its_soft_gates(model):
    bank = attach(
        model.train(), gate="subset", target_heads=7, temperature=0.7, anneal_steps=0, final_temperature=0.7
    )
    torch.manual_seed(3)
    bank.sample()
    worth = torch.linspace(-1, 2, 18)
    (asked(bank) * worth).sum().backward()
    got = torch.cat([gate.score.grad for _, gate in bank.items()])
    torch.manual_seed(3)
    noisy = (-torch.log(-torch.log(torch.rand(18, dtype=torch.float64)))).requires_grad_()
    (expected,) = torch.autograd.grad((soft_top_k(noisy, 7, 0.7) * worth).sum(), noisy)
    torch.testing.assert_close(got, expected.float())


def test_the_temperature_falls_log_linearly_with_the_draws_and_is_kept(model):
    bank = attach(
        model.train(), gate="subset", target_heads=7, temperature=1.0, final_temperature=0.01, anneal_steps=4
    )
    gate = next(gate for _, gate in bank.items())
    seen = []
    for _ in range(6):
        seen.append(gate.temperature)
        assert gate.is_annealing == (len(seen) <= 4)
        bank.sample()
    assert seen == pytest.approx([1, 10**-0.5, 0.1, 10**-1.5, 0.01, 0.01])
    other = GATES["subset"](gate.heads, final_temperature=0.01, anneal_steps=4)
    other.load_state_dict(gate.state_dict())
    assert other.temperature == pytest.approx(0.01)


def test_numbers_by_kind_hold_in_every_draw(model):
    bank = attach(model.train(), gate="subset", target_heads=KINDS)
    for _ in range(5):
        bank.sample()
        drawn = HeadMap({site: gate().detach() for site, gate in bank.items()})
        assert drawn.by_kind() == KINDS
    assert bank.open().by_kind() == KINDS


def test_a_copy_of_the_model_draws_for_itself(model):
    bank = attach(model.train(), gate="subset", target_heads=7)
    other = copy.deepcopy(model).head_gates
    other.sample()
    assert asked(other).sum() == 7
    assert all(gate.sampled is None for _, gate in bank.items())


@pytest.mark.parametrize("told", [19, -1, {"enc-self": 7, "dec-self": 0, "cross": 0}])
def test_more_heads_than_there_are_are_refused_and_the_model_stays_as_it_was(model, told):
    with pytest.raises(ValueError, match="target_heads: expected 0 to"):
        attach(model, gate="subset", target_heads=told)
    assert not hasattr(model, "head_gates")


def test_a_kind_without_a_number_is_named(model):
    with pytest.raises(
        ValueError,
        match="target_heads has no value for cross; give one for each kind",
    ):
        attach(model, gate="subset", target_heads={"enc-self": 1, "dec-self": 2})


def test_temperatures_must_be_above_0():
    with pytest.raises(ValueError, match="expected temperatures above 0"):
        Subset(3, target_heads=1, final_temperature=0.0)
