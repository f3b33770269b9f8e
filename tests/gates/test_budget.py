"""The price of a head, fixed or led to a number of heads, and the watch over a gate stage."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from headgates.gates import (
    GateWatch,
    HardConcrete,
    HeadMask,
    LambdaBudget,
    Limit,
    TargetBudget,
    attach,
    detach,
)
from tests.worlds.families import BY_NAME


def set_gates(bank, log_alpha):
    with torch.no_grad():
        for _, gate in bank.items():
            gate.log_alpha.fill_(log_alpha)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"lam": lam}, "lambda to be a finite number") for lam in (-0.01, math.nan, math.inf)),
        ({"lam": 0.01, "warmup": -1}, "warmup: expected a whole number of at least 0, got -1"),
    ],
)
def test_a_lambda_that_is_no_price_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LambdaBudget(**options)


# ---------------------------------------------------------------- the watch


def test_a_collapse_gives_a_reason_that_names_the_lambda_and_one_open_head_is_none(model):
    bank, watch = attach(model, lam=7.0), GateWatch()
    set_gates(bank, -3.0)
    assert "all 18 gated heads are closed at step 5: lambda 7 is too large" in watch.observe(5, bank)
    with torch.no_grad():
        bank.get_parameter("gates.encoder/0/enc-self.log_alpha")[0] = 0.5
    assert watch.observe(5, bank) is None


@pytest.mark.parametrize(
    ("lam", "step", "shift", "stalled"),
    [
        (0.01, 8, 0.19, True),
        (0.01, 8, 0.21, False),
        (0.01, 8, -0.21, False),
        (0.01, 7, 0.0, False),  # too early
        (0.0, 50, 0.0, False),  # no price
    ],
)
def test_a_stall_is_warned_of_once_where_no_log_alpha_has_moved(model, lam, step, shift, stalled):
    bank = attach(model, log_alpha=1.0, lam=lam, warmup=3)
    watch = GateWatch(patience=5, moved=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch.observe(0, bank)
        set_gates(bank, 1.0 + shift)
        for _ in range(3):
            assert watch.observe(step, bank) is None
    assert ["raise the gates' learning rate" in str(each.message) for each in caught] == [True] * stalled


# ---------------------------------------------------------------- a target


def test_the_target_falls_by_equal_steps_from_all_heads_and_stays(model):
    bank, budget = attach(model), TargetBudget(6, warmup=3)
    assert [budget.target(bank, "", step) for step in range(6)] == [15, 12, 9, 6, 6, 6]


def test_the_loss_is_the_augmented_lagrangian_and_the_multipliers_ascend(model):
    bank = attach(model, log_alpha=0.3)
    budget = TargetBudget({"enc-self": 1, "cross": 4}, warmup=1, stiffness=0.02, rate=0.5)
    budget.multipliers = {"enc-self": 0.25, "cross": -0.5}
    by_kind = bank.open_prob().by_kind()
    a, b = by_kind["enc-self"] - (6 + 1) / 2, by_kind["cross"] - (6 + 4) / 2  # half of the way, at step 0
    assert budget.loss(bank, 0).item() == pytest.approx(0.25 * a - 0.5 * b + 0.01 * (a**2 + b**2), rel=1e-5)
    for _ in range(2):  # micro-batches of the next step: one step of ascent
        budget.loss(bank, 1)
    found = [0.25 + 0.5 * a, -0.5 + 0.5 * b]
    assert list(budget.multipliers.values()) == pytest.approx(found)
    assert budget.weight(1) == pytest.approx((sum(found) + 0.02 * (a + b)) / 2, abs=1e-6)


def trained(bank, worth, steps):
    """Train gates on their budget, where an open head is worth so much of the loss."""
    optimizer = torch.optim.Adam(bank.parameters(), lr=0.1)
    torch.manual_seed(0)
    for step in range(steps):
        bank.sample()
        xi = torch.cat([gate() for _, gate in bank.items()])
        optimizer.zero_grad()
        (bank.loss(step) - (xi * worth).sum()).backward()
        optimizer.step()


@pytest.mark.parametrize(("start", "heads"), [(2.5, 4), (-2.2, 11)], ids=["from above", "from below"])
def test_the_expected_heads_come_to_the_target_and_the_best_heads_stay(model, start, heads):
    bank = attach(model.train(), log_alpha=start, heads=heads, warmup=10)
    worth = torch.linspace(0.005, 0.05, 18)
    assert (bank.open_prob().sum() > heads) == (start > 0)
    trained(bank, worth, steps=150)
    assert abs(bank.open_prob().sum() - heads) <= 1
    assert abs(bank.budget.errors[""]) <= 1
    chosen = bank.open().flat()
    assert chosen.sum() == heads
    assert worth[chosen].mean() > worth[~chosen].mean()
    assert str(bank) == f"GateBank(l0: {heads} of 18 heads open)"


def test_all_heads_shut_is_no_collapse_where_that_is_the_target(model):
    bank = attach(model, heads=0)
    assert bank.open().count() == 0
    assert GateWatch().observe(5, bank) is None


@pytest.mark.parametrize(("error", "stalled"), [(7.0, True), (0.5, False)])
def test_gates_that_do_not_come_to_their_number_are_said_to_stall(model, error, stalled):
    bank, watch = attach(model, heads=6), GateWatch(patience=5)
    bank.budget.errors[""] = error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (0, 5):
            assert watch.observe(step, bank) is None
    assert ["too low now to close one)" in str(each.message) for each in caught] == [True] * stalled


@pytest.mark.parametrize("wrong", [{"stiffness": 0.0}, {"rate": -1.0}, {"warmup": -1}])
def test_numbers_that_lead_nowhere_are_refused(wrong):
    with pytest.raises(ValueError, match=f"expected .*{next(iter(wrong))}|{next(iter(wrong))}: expected"):
        TargetBudget(4, **wrong)


# ---------------------------------------------------------------- costs, and neurons


def test_numbers_of_heads_and_of_neurons_are_two_groups_counted_in_heads(model):
    bank = attach(model, kinds="all")
    budget = TargetBudget({"heads": 6, "ffn": 26}, warmup=1)
    neuron = 1 / (2 * 7)  # of a head
    assert budget.target(bank, "heads", 0) == pytest.approx((18 + 6) / 2)
    assert budget.target(bank, "ffn", 0) == pytest.approx((52 + 26) / 2 * neuron)
    expected = [bank.penalty("heads").item() - 6, bank.penalty("ffn").item() - 26 * neuron]
    assert budget.loss(bank, 9).item() == pytest.approx(sum(0.05 * each**2 for each in expected))
    budget.loss(bank, 10)
    assert list(budget.errors.values()) == pytest.approx(expected)


def test_so_many_heads_is_the_limit_of_price_1(model):
    bank = attach(model, log_alpha=0.3)
    plain, priced = TargetBudget(5, warmup=2), TargetBudget({"": Limit(dict.fromkeys(bank.sites, 1.0), 5)}, 2)
    for step in range(4):
        assert priced.loss(bank, step).item() == plain.loss(bank, step).item()
    assert plain.state_dict() == priced.state_dict()


def test_the_expected_cost_comes_to_the_limit_and_cheap_units_stay(model):
    bank = attach(model.train(), kinds="all")
    price = {site: 3.0 if site.kind.startswith("enc") else 0.5 for site in bank.sites}
    budget = TargetBudget({"": Limit(price, 24.0)}, warmup=150, rate=0.0005)  # Adam hides a sudden price
    assert budget.target(bank, "", 150) == 24
    assert budget.limit(bank, "").whole == 3 * (6 + 26) + 0.5 * (12 + 26)
    bank.budget = budget
    trained(bank, 0.1, steps=300)  # all are worth the same
    p = bank.open_prob()
    cost = sum(float(row.sum()) * price[site] for site, row in p.items())
    assert cost == pytest.approx(24, abs=2), "of 115"
    dear, cheap = (torch.cat([p[s] for s in p if price[s] == value]).mean() for value in (3.0, 0.5))
    assert cheap > 0.9
    assert dear < 0.2


@pytest.mark.parametrize("total", [-1.0, math.nan])
def test_a_limit_that_is_no_cost_is_refused(total):
    with pytest.raises(ValueError, match="a total and prices of at least 0"):
        Limit({}, total)


# ---------------------------------------------------------------- one call


def test_attach_with_neurons_gates_them_and_each_kind_keeps_its_number(model):
    bank = attach(model, heads={"enc-self": 2, "dec-self": 3, "cross": 4}, neurons=26)
    assert {kind: int(count) for kind, count in bank.open().by_kind().items() if "ffn" not in kind} == {
        "enc-self": 2,
        "dec-self": 3,
        "cross": 4,
    }
    assert repr(bank) == "GateBank(l0: 9 of 18 heads, 26 of 52 neurons open)"
    assert {site.kind for site in attach(copy_of(model), neurons=26).sites} == {"enc-ffn", "dec-ffn"}


def copy_of(model):
    detach(other := copy.deepcopy(model))
    return other


def test_attach_with_a_price_is_the_price_of_every_expected_open_head(model):
    bank = attach(model, log_alpha=0.3, lam=0.8, warmup=3)
    p = bank.open_prob().sum()
    losses = [bank.loss(step) for step in range(5)]
    assert [loss.item() for loss in losses] == pytest.approx([0.2 * p, 0.4 * p, 0.6 * p, 0.8 * p, 0.8 * p])
    losses[0].backward()
    assert all((parameter.grad > 0).all() for parameter in bank.parameters())
    bank.binarise()
    assert bank.loss(9).item() == 0
    assert not bank.loss(9).requires_grad


def test_gates_that_keep_the_number_in_every_sample_cost_nothing(model):
    bank = attach(model, gate="subset", heads=5)
    assert bank.loss(0).item() == 0
    assert sum(gate().sum() for _, gate in bank.items()) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4, "lam": 0.1}, "how many stay, or lam=, the price of each that stays; got both"),
        ({"heads": 2.5}, "heads: expected a whole number, got 2.5"),
        ({"heads": {"enc-self": "3"}}, "enc-self: expected a whole number, got '3'"),
        ({"heads": 4, "kinds": "all"}, "heads=4 says nothing of enc-ffn and dec-ffn; give neurons= too"),
        ({"neurons": 4, "kinds": "heads"}, "'ffn' has a number that stays, but no gates"),
        ({"heads": {"enc-self": 1}, "kinds": "heads"}, "no value for dec-self"),
        ({"heads": 19}, "expected 0 to 18"),
        ({"heads": 4, "gate": "mask"}, "gate 'mask' cannot be made with the options"),
        ({"lam": -1.0}, "lambda to be a finite number"),
        ({"lam": "0.1"}, "lam: expected a number, got '0.1'"),
        ({"lam": 0.1, "warmup": 1.5}, "warmup: expected a whole number of at least 0, got 1.5"),
        ({"heads": 4, "multiple": 0}, "multiple: expected a whole number of at least 1, got 0"),
    ],
)
def test_two_budgets_or_numbers_of_nothing_are_refused_and_no_gate_stays(model, options, message):
    with pytest.raises(ValueError, match=message):
        attach(model, **options)
    assert not hasattr(model, "head_gates")


def test_a_number_for_a_kind_that_the_model_lacks_is_refused_with_those_that_it_has():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    with pytest.raises(
        ValueError, match=r"heads\['cross'\]: the model has no heads of this kind, but of enc-s"
    ):
        attach(encoder, heads={"enc-self": 1, "cross": 1})


def test_kinds_are_those_that_have_a_number(model):
    assert {site.kind for site in attach(model, heads={"enc-self": 3, "cross": 2}).sites} == {
        "enc-self",
        "cross",
    }


def test_a_bank_without_a_budget_says_how_to_give_one(model):
    with pytest.raises(
        ValueError, match=r"nothing says how many heads stay: give attach\(\.\.\., heads=24\)"
    ):
        attach(model).loss(0)


def test_masks_by_sentence_have_one_line_too(model):
    bank = attach(model, gate="mask", kinds=["cross"])
    assert str(bank) == "GateBank(mask: 6 of 6 heads open)"
    bank.assign({site: torch.ones(5, site.heads) for site in bank.sites})
    assert str(bank) == "GateBank(mask: 6 gates by sentence)"


# ---------------------------------------------------------------- gates of other packages


def test_a_gate_is_named_by_its_class_or_its_place(model):
    bank = attach(model, gate="headgates.gates.hard_concrete:HardConcrete", log_alpha=1.0)
    assert all(type(gate) is HardConcrete for _, gate in bank.items())
    detach(model)
    assert all(type(gate) is HeadMask for _, gate in attach(model, gate=HeadMask).items())


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("l1", "unknown gate 'l1'"),
        ("nowhere.at.all:Gate", "the module 'nowhere.at.all' cannot be imported"),
        (":Gate", "cannot be imported"),
        ("headgates.gates.mask:HeadMusk", "has no 'HeadMusk'; did you mean 'HeadMask'"),
        ("headgates.gates.mask:gate_heads", "expected a gate of l0, mask, subset, a subclass"),
        (torch.nn.Linear, "expected a gate of l0"),
    ],
)
def test_what_is_no_gate_is_refused_in_words(model, gate, message):
    with pytest.raises(ValueError, match=message):
        attach(model, gate=gate)


def test_a_number_of_heads_counts_heads_where_several_share_a_gate():
    model = BY_NAME["Llama"].model()  # two heads to a key head
    bank = attach(model, heads=8)
    assert bank.open().count() == 8
    assert bank.budget.target(bank, "", 0) == 8
    detach(model)
    with pytest.raises(ValueError, match="heads=7: 2 heads share a key head and go together; ask for 6 or 8"):
        attach(model, heads=7)
