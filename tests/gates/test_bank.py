"""GateBank: all gates of a model as one module, its optimiser groups and its file."""

import copy
import json
import pickle

import pytest
import torch

from headgates.gates import HeadMap, HeadSite, attach, find_sites
from headgates.gates.sites import BANK


def test_the_attached_bank_is_a_submodule_of_the_model(model):
    bank = attach(model)
    assert bank in list(model.children())


def test_the_bank_follows_the_model_between_training_and_evaluation(model):
    bank = attach(model)
    model.train()
    assert all(gate.training for _, gate in bank.items())
    model.eval()
    assert not any(gate.training for _, gate in bank.items())


@pytest.mark.parametrize("training", [True, False])
def test_attached_gates_are_in_the_mode_of_the_model(model, training):
    assert all(gate.training == training for _, gate in attach(model.train(training)).items())


def test_the_penalty_is_the_sum_over_all_heads_of_open_prob(model):
    bank = attach(model, log_alpha=0.4)
    assert bank.penalty().item() == pytest.approx(bank.open_prob().sum(), rel=1e-6)


def test_open_and_closed_heads_are_all_heads(model):
    bank = attach(model)
    with torch.no_grad():
        bank.get_parameter("gates.decoder/1/cross.log_alpha").copy_(torch.tensor([-1.0, 2.0, -0.1]))
    assert (bank.open().count(), bank.closed().count()) == (16, 2)
    assert bank.closed()["decoder.1.cross"].tolist() == [True, False, True]


def test_no_parameter_is_in_two_groups_and_none_is_forgotten(model):
    bank = attach(model)
    groups = bank.param_groups(lr=0.1, gate_lr=0.2, weight_decay=0.3)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in model.parameters()}


def test_gates_have_their_own_rate_and_no_weight_decay(model):
    groups = {
        group["name"]: group for group in attach(model).param_groups(lr=0.1, gate_lr=0.2, weight_decay=0.3)
    }
    assert (groups["model"]["lr"], groups["model"]["weight_decay"]) == (0.1, 0.3)
    assert (groups["gates"]["lr"], groups["gates"]["weight_decay"]) == (0.2, 0.0)


def test_frozen_weights_are_in_no_group(model):
    bank = attach(model)
    model.decoder.requires_grad_(False)
    chosen = {id(parameter) for group in bank.param_groups(lr=0.1) for parameter in group["params"]}
    decoder_gates = {id(parameter) for parameter in bank.parameters()}
    assert not chosen & ({id(parameter) for parameter in model.decoder.parameters()} - decoder_gates)


def test_a_wholly_frozen_model_leaves_the_group_of_gates_alone(model):
    model.requires_grad_(False)
    assert [group["name"] for group in attach(model).param_groups(lr=0.1)] == ["gates"]


def test_the_groups_make_an_optimiser_that_moves_gates_and_weights(model, batch):
    bank = attach(model.train(), log_alpha=0.0)
    before = copy.deepcopy(model.state_dict())
    optimiser = torch.optim.AdamW(bank.param_groups(lr=0.01, gate_lr=0.1))
    (model(*batch).square().mean() + bank.penalty()).backward()
    optimiser.step()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {f"{BANK}.gates.{site.name.replace('.', '/')}.log_alpha" for site in bank.sites} <= moved
    assert "encoder.layers.0.self_attention.q_proj.weight" in moved


def wired(model) -> bool:
    """Whether every slot holds the bank's own gate."""
    gates = dict(getattr(model, BANK).items())
    return all(module.gate is gates[site] for site, module in find_sites(model).items())


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
class TestCopies:
    def test_a_copy_has_its_slots_wired_to_its_own_bank(self, model, duplicate):
        bank = attach(model)
        other = duplicate(model)
        assert wired(other)
        assert getattr(other, BANK) is not bank

    def test_the_gates_of_a_copy_move_without_the_original(self, model, batch, duplicate):
        attach(model, gate="mask")
        before = model(*batch)
        other = duplicate(model)
        for _, gate in getattr(other, BANK).items():
            gate.assign(torch.zeros(3))
        assert torch.equal(model(*batch), before)
        assert not torch.allclose(other(*batch), before)

    def test_the_groups_of_a_copy_hold_the_copy_s_weights(self, model, duplicate):
        attach(model)
        other = duplicate(model)
        groups = getattr(other, BANK).param_groups(lr=0.1)
        assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in other.parameters()}


def test_assign_changes_the_named_sites_alone(model):
    bank = attach(model, gate="mask")
    site = HeadSite.at("cross", 1, 3)
    bank.assign({site: torch.tensor([1.0, 0.0, 0.5])})
    assert bank.values()[site].tolist() == [1.0, 0.0, 0.5]
    assert bank.values().sum() == 18 - 1.5


def test_assign_refuses_gates_that_are_learned(model):
    bank = attach(model)
    with pytest.raises(ValueError, match="need"):
        bank.assign(bank.values())


def test_assign_names_a_site_it_does_not_have(model):
    bank = attach(model, gate="mask", kinds=["cross"])
    with pytest.raises(ValueError, match=r"no site encoder\.0\.enc-self of 3 heads"):
        bank.assign({HeadSite.at("enc-self", 0, 3): torch.ones(3)})


def test_the_saved_file_holds_every_head_s_log_alpha_probability_value_and_decision(model, tmp_path):
    bank = attach(model)
    bank.save(tmp_path / "gates.json")
    content = json.loads((tmp_path / "gates.json").read_text())
    assert content["gate"] == "l0"
    heads = content["sites"]["decoder.0.cross"]
    assert [head["head"] for head in heads] == [0, 1, 2]
    assert set(heads[0]) == {"head", "log_alpha", "open_prob", "value", "open"}
    assert heads[0]["open"] is True


def test_values_are_given_as_head_maps_without_gradient(model):
    bank = attach(model)
    for head_map in (bank.values(), bank.open_prob(), bank.open(), bank.closed()):
        assert isinstance(head_map, HeadMap)
        assert not head_map.flat().requires_grad
