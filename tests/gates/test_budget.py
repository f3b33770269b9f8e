"""The price of a head and the watch over a gate stage."""

import math
import warnings

import pytest
import torch

from headgates.gates import GateWatch, LambdaBudget, NotANumber, attach


def set_gates(bank, log_alpha):
    with torch.no_grad():
        for _, gate in bank.items():
            gate.log_alpha.fill_(log_alpha)


def test_lambda_grows_by_equal_steps_and_then_stays():
    budget = LambdaBudget(lam=0.8, warmup=3)
    assert [budget.weight(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_without_warm_up_lambda_is_whole_at_once():
    assert LambdaBudget(lam=0.8).weight(0) == 0.8


def test_the_loss_is_lambda_times_the_expected_target_heads(model):
    bank = attach(model, log_alpha=0.3)
    assert LambdaBudget(lam=0.03).loss(bank, 0).item() == pytest.approx(
        0.03 * bank.open_prob().sum(), rel=1e-6
    )


def test_the_loss_has_a_gradient_for_every_gate(model):
    bank = attach(model)
    LambdaBudget(lam=0.03).loss(bank, 0).backward()
    assert all((parameter.grad > 0).all() for parameter in bank.parameters())


@pytest.mark.parametrize("lam", [-0.01, math.nan, math.inf])
def test_a_lambda_that_is_no_price_is_refused(lam):
    with pytest.raises(ValueError, match="lambda to be a finite number"):
        LambdaBudget(lam=lam)


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="warm-up"):
        LambdaBudget(lam=0.01, warmup=-1)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_and_says_what_to_lower(model, loss):
    with pytest.raises(NotANumber, match="step 17: lower the learning rate of the model or of the gates"):
        GateWatch(LambdaBudget(0.01)).observe(17, loss, attach(model))


def test_a_collapse_gives_a_reason_that_names_the_lambda(model):
    bank = attach(model)
    set_gates(bank, -3.0)
    reason = GateWatch(LambdaBudget(7.0)).observe(5, 1.0, bank)
    assert reason is not None
    assert "all 18 gated heads are shut at step 5: lambda 7" in reason
    assert "lower lambda" in reason


def test_one_open_head_is_no_collapse(model):
    bank = attach(model)
    set_gates(bank, -3.0)
    with torch.no_grad():
        bank.get_parameter("gates.encoder/0/enc-self.log_alpha")[0] = 0.5
    assert GateWatch(LambdaBudget(7.0)).observe(5, 1.0, bank) is None


def test_a_stall_warns_once_and_names_the_gate_rate(model):
    bank = attach(model)
    watch = GateWatch(LambdaBudget(0.01, warmup=3), patience=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(13):
            assert watch.observe(step, 1.0, bank) is None
    assert len(caught) == 1
    assert "raise the gates' learning rate" in str(caught[0].message)


@pytest.mark.parametrize(
    ("lam", "step", "log_alpha"),
    [(0.0, 50, 2.5), (0.01, 7, 2.5), (0.01, 50, 2.0)],
    ids=["no price", "too early", "a gate moved"],
)
def test_there_is_no_stall_where_none_can_be_told(model, lam, step, log_alpha):
    bank = attach(model, log_alpha=2.5)
    watch = GateWatch(LambdaBudget(lam, warmup=3), patience=5)
    watch.observe(0, 1.0, bank)
    set_gates(bank, log_alpha)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.observe(step, 1.0, bank) is None


@pytest.mark.parametrize(("shift", "stalled"), [(0.19, True), (0.21, False), (-0.21, False)])
def test_movement_is_measured_in_log_alpha(model, shift, stalled):
    bank = attach(model, log_alpha=1.0)
    watch = GateWatch(LambdaBudget(0.01), patience=5, moved=0.2)
    watch.observe(0, 1.0, bank)
    set_gates(bank, 1.0 + shift)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch.observe(5, 1.0, bank)
    assert bool(caught) == stalled
