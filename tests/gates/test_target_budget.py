"""The price that is steered to a number of heads."""

import pytest
import torch

from headgates.gates import GateWatch, TargetBudget, attach


def expected(bank):
    return bank.open_prob().sum()


def train(bank, budget, worth, steps=300):
    """Gates of heads that are worth so many nats each, when open, under the budget."""
    gates = [gate for _, gate in bank.items()]
    optimizer = torch.optim.Adam(bank.parameters(), lr=0.1)
    torch.manual_seed(0)
    for step in range(steps):
        bank.sample()
        loss = -(torch.cat([gate() for gate in gates]) * worth).sum() + budget.loss(bank, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.update(bank, step)


def test_the_target_falls_by_equal_steps_from_all_heads_and_stays(model):
    bank, budget = attach(model), TargetBudget(6, warmup=3)
    assert [budget.target(bank, "", step) for step in range(6)] == [15, 12, 9, 6, 6, 6]


def test_the_loss_is_the_augmented_lagrangian(model):
    bank, budget = (
        attach(model, log_alpha=0.3),
        TargetBudget({"enc-self": 1, "cross": 4}, stiffness=0.02, rate=0.5),
    )
    budget.multipliers = {"enc-self": 0.25, "cross": -0.5}
    by_kind = bank.open_prob().by_kind()
    a, b = by_kind["enc-self"] - 1, by_kind["cross"] - 4
    assert budget.loss(bank, 0).item() == pytest.approx(0.25 * a - 0.5 * b + 0.01 * (a**2 + b**2), rel=1e-5)
    budget.update(bank, 0)
    assert budget.multipliers == {
        "enc-self": pytest.approx(0.25 + 0.5 * a),
        "cross": pytest.approx(-0.5 + 0.5 * b),
    }


@pytest.mark.parametrize(("start", "side"), [(2.5, "above"), (-2.2, "below")])
@pytest.mark.parametrize("heads", [4, 11])
def test_the_expected_heads_come_to_the_number_from_both_sides(model, start, side, heads):
    bank, budget = attach(model.train(), log_alpha=start, target_heads=heads), TargetBudget(heads, warmup=10)
    assert (expected(bank) > heads) == (side == "above")
    assert not budget.is_reached(bank, 3)
    worth = torch.linspace(0.005, 0.05, 18)
    train(bank, budget, worth, steps=150)
    assert abs(expected(bank) - heads) <= 1
    assert budget.is_reached(bank, 150)
    chosen = bank.open().flat()
    assert chosen.sum() == heads
    assert worth[chosen].mean() > worth[~chosen].mean()


def test_the_decision_is_the_most_open_of_all_sites(model):
    bank = attach(model, target_heads=5)
    with torch.no_grad():
        for number, (_, gate) in enumerate(bank.items()):
            gate.log_alpha.copy_(torch.tensor([-1.0, -2.0, 3.0]) - number)
    flat = torch.cat([gate.log_alpha.detach() for _, gate in bank.items()])
    assert set(bank.open().flat().nonzero().flatten().tolist()) == set(
        flat.argsort(descending=True)[:5].tolist()
    )
    assert bank.closed().count() == 13


def test_its_state_goes_on_where_it_was(model):
    bank, budget, other = attach(model), TargetBudget(4), TargetBudget(4)
    budget.update(bank, 0)
    other.load_state_dict(budget.state_dict())
    assert other.weight(0) == budget.weight(0) > 0
    assert torch.equal(other.loss(bank, 1), budget.loss(bank, 1))


def test_all_heads_shut_is_no_collapse_where_none_was_asked_for(model):
    bank = attach(model, target_heads=0)
    assert bank.open().count() == 0
    assert GateWatch(TargetBudget(0)).observe(5, 1.0, bank) is None


@pytest.mark.parametrize("wrong", [{"stiffness": 0.0}, {"rate": -1.0}, {"warmup": -1}])
def test_numbers_that_cannot_steer_are_refused(wrong):
    with pytest.raises(ValueError, match="expected stiffness and rate above 0 and warmup of at least 0"):
        TargetBudget(4, **wrong)
