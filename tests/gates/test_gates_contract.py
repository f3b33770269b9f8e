"""What every entry of GATES must keep, whatever it learns: shapes, ranges, no noise at test time."""

import copy
import inspect

import pytest
import torch

from headgates.gates import GATES

HEADS = 7
TARGET = 3  # heads that stay open, for gates that take a target
WITH_TARGET = [kind for kind in GATES if "target_heads" in inspect.signature(GATES[kind]).parameters]


@pytest.fixture(
    params=[*((kind, {}) for kind in GATES), *((kind, {"target_heads": TARGET}) for kind in WITH_TARGET)],
    ids=str,
)
def gate(request):
    kind, options = request.param
    torch.manual_seed(0)
    return GATES[kind](HEADS, **options)


def test_xi_is_one_number_a_head_in_the_unit_interval_and_without_noise_in_evaluation(gate):
    for mode in (True, False):
        xi = gate.train(mode)()
        assert xi.shape == (HEADS,)
        assert ((xi >= 0) & (xi <= 1)).all()
    assert torch.equal(gate(), gate.test_value())
    assert torch.equal(gate.test_value(), gate.test_value())
    assert gate.target_heads is not None or torch.equal(gate.test_value(), torch.ones(HEADS))  # fresh: open


@pytest.mark.parametrize("kind", WITH_TARGET)
@pytest.mark.parametrize("number", [0, 1, TARGET, HEADS])
def test_a_gate_with_a_target_decides_on_it(kind, number):
    assert GATES[kind](HEADS, target_heads=number).decision().sum() == number


@pytest.mark.parametrize("kind", WITH_TARGET)
@pytest.mark.parametrize("number", [-1, HEADS + 1])
def test_a_target_that_no_gates_can_keep_is_refused(kind, number):
    gate = GATES[kind](HEADS, target_heads=number)
    with pytest.raises(ValueError, match=f"target_heads: expected 0 to {HEADS}, .* got {number}"):
        gate.join([gate])


def test_probability_penalty_and_decision_agree_in_shape_and_range(gate):
    p, penalty, decision = gate.open_prob(), gate.penalty(), gate.decision()
    assert p.shape == decision.shape == (HEADS,)
    assert decision.dtype == torch.bool
    assert ((p >= 0) & (p <= 1)).all()
    assert penalty.shape == ()
    assert penalty.item() == pytest.approx(p.sum().item())
    numbers = gate.numbers()
    assert {"open_prob", "value", "open"} <= set(numbers)
    assert all(column.shape == (HEADS,) and not column.requires_grad for column in numbers.values())


def test_a_learned_gate_can_be_made_its_decision_and_soft_again(gate):
    if gate.given:
        with pytest.raises(ValueError, match="binarise needs learned gates"):
            gate.binarise()
        return
    soft = gate.eval()()
    gate.binarise()
    for mode in (True, False):
        assert torch.equal(gate.train(mode)(), gate.decision().float())
        assert not gate().requires_grad
    gate.binarise(False)
    assert torch.equal(gate(), soft)


def test_the_gradient_reaches_every_parameter_through_xi_or_the_penalty(gate):
    xi = gate.train()()
    loss = (xi * torch.arange(1, HEADS + 1)).sum() + gate.penalty()  # weighed: the sum may be constant
    # nothing to learn: a mask, or all heads in every sample
    if not gate.given and not (gate.learned == "score" and gate.target_heads is None):
        loss.backward()
        assert all((parameter.grad != 0).any() for parameter in gate.parameters())


def test_its_state_dict_restores_it(gate):
    other = copy.deepcopy(gate)
    state = {
        name: -torch.arange(3, 3 + tensor.numel()).flip(0).view_as(tensor).to(tensor)
        for name, tensor in gate.state_dict().items()
    }
    other.load_state_dict(state)
    assert not torch.equal(other.position(), gate.position())
    other.load_state_dict(gate.state_dict())
    assert torch.equal(other.test_value(), gate.test_value())
    assert torch.equal(other.position(), gate.position())
