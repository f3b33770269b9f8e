"""What every entry of GATES must keep, whatever it learns: shapes, ranges, no noise at test time."""

import copy
import inspect

import pytest
import torch

from headgates.gates import GATES

HEADS = 7
TOLD = 3  # heads that stay open, for gates that are told their number


def make(kind: str, told: bool):
    torch.manual_seed(0)
    return GATES[kind](HEADS, **({"target_heads": TOLD} if told else {}))


def takes_a_number(kind: str) -> bool:
    return "target_heads" in inspect.signature(GATES[kind]).parameters


@pytest.fixture(
    params=[(kind, told) for kind in sorted(GATES) for told in (False, True)[: 1 + takes_a_number(kind)]],
    ids=str,
)
def gate(request):
    return make(*request.param)


def test_xi_has_one_number_a_head_in_the_unit_interval(gate):
    for mode in (True, False):
        xi = gate.train(mode)()
        assert xi.shape == (HEADS,)
        assert ((xi >= 0) & (xi <= 1)).all()


def test_evaluation_gives_the_test_value(gate):
    assert torch.equal(gate.eval()(), gate.test_value())


def test_the_test_value_is_the_same_twice(gate):
    assert torch.equal(gate.test_value(), gate.test_value())


@pytest.mark.parametrize("kind", sorted(GATES))
def test_a_fresh_gate_is_open(kind):
    assert torch.equal(make(kind, told=False).test_value(), torch.ones(HEADS))


@pytest.mark.parametrize("kind", sorted(filter(takes_a_number, GATES)))
@pytest.mark.parametrize("number", [0, 1, TOLD, HEADS])
def test_a_gate_that_is_told_a_number_decides_on_it(kind, number):
    assert GATES[kind](HEADS, target_heads=number).decision().sum() == number


@pytest.mark.parametrize("kind", sorted(filter(takes_a_number, GATES)))
@pytest.mark.parametrize("number", [-1, HEADS + 1])
def test_a_number_that_no_gates_can_keep_is_refused(kind, number):
    gate = GATES[kind](HEADS, target_heads=number)
    with pytest.raises(
        ValueError,
        match=f"target_heads: expected 0 to {HEADS}, the number of gates that share it, got {number}",
    ):
        gate.join([gate])


def test_open_prob_is_a_probability_a_head(gate):
    p = gate.open_prob()
    assert p.shape == (HEADS,)
    assert ((p >= 0) & (p <= 1)).all()


def test_the_penalty_is_a_scalar_between_no_head_and_all(gate):
    penalty = gate.penalty()
    assert penalty.shape == ()
    assert 0 <= penalty.item() <= HEADS


def test_a_learned_gate_can_be_made_its_decision_and_soft_again(gate):
    if gate.given:
        with pytest.raises(ValueError, match="binarise needs learned gates"):
            gate.binarise()
        return
    soft = gate.eval()()
    gate.binarise()
    for mode in (True, False):
        assert torch.equal(gate.train(mode)(), gate.decision().float())
    gate.binarise(False)
    assert torch.equal(gate(), soft)


def test_the_gates_of_several_sites_draw_one_xi_each(gate):
    gates = [copy.deepcopy(gate) for _ in range(3)]
    if not gate.given:
        assert [xi.shape for xi in type(gate).sample_peers(gates)] == [(HEADS,)] * 3


def test_the_decision_is_a_bool_a_head(gate):
    decision = gate.decision()
    assert decision.shape == (HEADS,)
    assert decision.dtype == torch.bool


def test_the_gradient_reaches_every_parameter_through_xi_or_the_penalty(gate):
    parameters = list(gate.parameters())
    if not parameters:
        pytest.skip("this gate learns nothing")
    xi = gate.train()()
    (
        (xi * torch.arange(1, HEADS + 1)).sum() + gate.penalty()
    ).backward()  # weighed: a sum over all heads may be a constant
    stays = xi.sum() == HEADS and torch.equal(
        gate.penalty(), xi.detach().sum()
    )  # all heads in every draw: nothing to learn
    assert stays or all(
        parameter.grad is not None and (parameter.grad != 0).any() for parameter in parameters
    )


def test_its_numbers_are_columns_of_one_value_a_head_without_gradient(gate):
    numbers = gate.numbers()
    assert {"open_prob", "value", "open"} <= set(numbers)
    assert all(column.shape == (HEADS,) and not column.requires_grad for column in numbers.values())


def test_its_state_dict_restores_it(gate):
    other = copy.deepcopy(gate)
    state = {
        name: tensor * 0 - torch.arange(3, 3 + tensor.numel()).flip(0).view_as(tensor)
        for name, tensor in gate.state_dict().items()
    }
    other.load_state_dict(state)
    assert not torch.equal(other.position(), gate.position())
    assert gate.decision().all() or not torch.equal(other.test_value(), gate.test_value())
    other.load_state_dict(gate.state_dict())
    assert torch.equal(other.test_value(), gate.test_value())
    assert torch.equal(other.position(), gate.position())
