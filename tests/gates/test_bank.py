"""GateBank: all gates of a model as one module, its optimiser groups and its file."""

import json
import pickle
import warnings

import pytest
import torch
from torch import nn

from headgates.gates import HeadSite, attach, find_sites
from headgates.gates.sites import BANK

SITE = HeadSite.at("cross", 1, 3)


def test_open_and_closed_heads_are_all_heads_and_maps_hold_no_gradient(model):
    bank = attach(model)
    with torch.no_grad():
        bank.get_parameter("gates.decoder/1/cross.log_alpha").copy_(torch.tensor([-1.0, 2.0, -0.1]))
    assert (bank.open().count(), bank.closed().count()) == (16, 2)
    assert bank.closed()[SITE].tolist() == [True, False, True]
    assert bank.penalty().item() == pytest.approx(bank.open_prob().sum(), rel=1e-6)
    assert not any(each.flat().requires_grad for each in (bank.values(), bank.open_prob()))


def test_each_parameter_is_in_one_group_and_gates_have_their_own_rate_without_decay(model):
    groups = attach(model).param_groups(lr=0.1, gate_lr=0.2, weight_decay=0.3)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in model.parameters()}
    assert [(each["name"], each["lr"], each["weight_decay"]) for each in groups] == [
        ("model", 0.1, 0.3),
        ("gates", 0.2, 0.0),
    ]
    assert {id(each) for each in groups[1]["params"]} == {id(each) for each in model.head_gates.parameters()}


def test_frozen_weights_are_in_no_group(model):
    bank = attach(model)
    model.requires_grad_(False)
    bank.requires_grad_(True)
    assert [group["name"] for group in bank.param_groups(lr=0.1)] == ["gates"]


def test_a_pickled_copy_has_gates_and_groups_of_its_own(model):
    bank, other = attach(model), pickle.loads(pickle.dumps(model))
    copied = getattr(other, BANK)
    assert copied is not bank
    gates = dict(copied.items())
    assert all(module.gate is gates[site] for site, module in find_sites(other).items())
    groups = copied.param_groups(lr=0.1)
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in other.parameters()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "assign needs gates of kind 'mask', these are 'l0'"),
        ({"gate": "mask", "kinds": ["enc-self"]}, r"no site decoder\.1\.cross of 3 heads"),
    ],
)
def test_assign_refuses_learned_gates_and_sites_without_a_gate(model, options, message):
    with pytest.raises(ValueError, match=message):
        attach(model, **options).assign({SITE: torch.ones(3)})


def test_the_saved_file_holds_every_head_s_log_alpha_probability_value_and_decision(model, tmp_path):
    attach(model).save(tmp_path / "gates.json")
    content = json.loads((tmp_path / "gates.json").read_text())
    assert (content["version"], content["gate"]) == (1, "l0")
    heads = content["sites"]["decoder.0.cross"]
    assert [head["head"] for head in heads] == [0, 1, 2]
    assert set(heads[0]) == {"head", "log_alpha", "open_prob", "value", "open"}
    assert (heads[0]["log_alpha"], heads[0]["open"]) == (2.5, True)


# ---------------------------------------------------------------- in training


@pytest.mark.parametrize("cast", ["bfloat16", "half", "default"])
def test_gates_of_a_model_that_is_cast_learn_in_float32(cast):
    torch.manual_seed(0)
    x, attention = torch.randn(3, 5, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    dtype = torch.float16 if cast == "half" else torch.bfloat16
    try:
        if cast == "default":
            attention.to(dtype)
            torch.set_default_dtype(dtype)
        bank = attach(attention, lam=0.01, log_alpha=2.5)
    finally:
        torch.set_default_dtype(torch.float32)
    if cast != "default":
        getattr(attention, cast)()
    bank.sample()
    assert attention(x.to(dtype)).dtype == attention.linear1.weight.dtype == dtype
    optimizer = torch.optim.SGD(bank.parameters(), lr=0.01)  # a step that bfloat16 cannot hold
    for step in range(3):
        optimizer.zero_grad()
        bank.loss(step).backward()
        optimizer.step()
    (log_alpha,) = bank.parameters()
    p = float(torch.sigmoid(torch.tensor(2.5) - 0.33 * torch.tensor(0.1 / 1.1).log()))
    assert log_alpha.dtype == torch.float32
    assert (2.5 - log_alpha).tolist() == pytest.approx([3 * 0.01 * 0.01 * p * (1 - p)] * 2, rel=0.05)


@pytest.mark.parametrize("held", [False, True])
def test_an_optimizer_without_the_gates_is_noticed_and_said_once(model, held):
    before = torch.optim.AdamW(model.parameters())  # made before attach
    bank = attach(model, lam=0.01)
    optimizer = torch.optim.AdamW(bank.param_groups(lr=0.1)) if held else before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(60):
            optimizer.zero_grad()
            bank.loss(step).backward()
            optimizer.step()
    said = [str(each.message) for each in caught]
    assert len(said) == (0 if held else 1)
    assert held or "no gate has moved in 20 steps, so the optimizer does not hold the gates" in said[0]
