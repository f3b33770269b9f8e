"""find_sites, attach, detach: every head is found, what is attached can be detached, and closing a head has
one meaning."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from headgates.gates import KINDS, HeadMap, HeadSite, attach, detach, find_sites
from headgates.gates.sites import BANK
from headgates.models.attention import MultiHeadAttention
from headgates.models.transformer import Transformer

HEADS, WIDTH = 3, 7


def test_every_attention_is_found_in_the_order_of_kinds_and_layers(make_model):
    sites = find_sites(make_model(encoder_layers=3, decoder_layers=2))
    assert [site.name for site in sites] == [
        *(f"encoder.{i}.enc-self" for i in range(3)),
        *(f"decoder.{i}.dec-self" for i in range(2)),
        *(f"decoder.{i}.cross" for i in range(2)),
    ]
    assert all(site.heads == HEADS for site in sites)


def test_a_site_leads_to_its_own_module(model):
    assert find_sites(model)[HeadSite.at("cross", 1, HEADS)] is model.decoder.layers[1].cross_attention


def test_sites_are_found_inside_a_module_that_holds_the_model(model):
    assert list(find_sites(nn.ModuleDict({"model": model}))) == list(find_sites(model))


class ScaledColumns(nn.Module):
    """W_O with the columns of head h times xi_h."""

    def __init__(self, xi):
        super().__init__()
        self.xi = xi

    def forward(self, weight):
        return weight * self.xi.repeat_interleave(WIDTH)


def removed(model, xi: HeadMap):
    """A smaller model that has the open heads of `model` and nothing of the closed ones."""
    heads = {site.name: int(row.sum()) for site, row in xi.items()}
    small = Transformer(model.config, model.source_vocab, model.target_vocab, heads).eval()
    theirs = {site.name: module for site, module in find_sites(small).items()}
    state = {name: tensor for name, tensor in model.state_dict().items() if "attention" not in name}
    small.load_state_dict(state, strict=False)
    for site, module in find_sites(model).items():
        kept = xi[site].bool().repeat_interleave(WIDTH)
        other = theirs[site.name]
        with torch.no_grad():
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(other, name).weight.copy_(getattr(module, name).weight[kept])
                getattr(other, name).bias.copy_(getattr(module, name).bias[kept])
            other.out_proj.weight.copy_(module.out_proj.weight[:, kept])
            other.out_proj.bias.copy_(module.out_proj.bias)
    return small


# torch warns of weights without elements where a site keeps no head
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_gate_at_zero_and_zeroed_columns_and_removed_head_and_parametrised_weight_agree(model, batch):
    xi = HeadMap(
        {
            site: [float((i + h) % 3 > 0 and i != 4) for h in range(HEADS)]
            for i, site in enumerate(find_sites(model))
        }
    )
    assert {int(row.sum()) for row in xi.values()} == {0, 2}  # one site loses all its heads

    attach(model, gate="mask", xi=xi)
    gated = model(*batch)
    detach(model)

    by_removal = removed(model, xi)(*batch)

    for site, module in find_sites(model).items():
        parametrize.register_parametrization(module.out_proj, "weight", ScaledColumns(xi[site].float()))
    by_parametrisation = model(*batch)
    for module in find_sites(model).values():
        parametrize.remove_parametrizations(module.out_proj, "weight", leave_parametrized=False)

    for site, module in find_sites(model).items():
        module.out_proj.weight.data.mul_(xi[site].float().repeat_interleave(WIDTH))
    by_columns = model(*batch)

    torch.testing.assert_close(gated, by_columns)
    torch.testing.assert_close(gated, by_parametrisation)
    torch.testing.assert_close(gated, by_removal)


def test_binarised_gates_equal_masks_of_their_decisions(model, batch):
    bank = attach(model)
    with torch.no_grad():
        for i, (_, gate) in enumerate(bank.items()):
            gate.log_alpha.copy_(
                torch.tensor([5.0, -5.0, 4.0 if i % 2 else -4.0])
            )  # beyond 2.398: the test gate is 0 or 1
    learned, decided = model(*batch), bank.open()
    detach(model)
    attach(model, gate="mask", xi=decided)
    assert torch.equal(model(*batch), learned)


def test_attaching_changes_no_weight_and_adds_gates_under_one_name(model):
    before = set(model.state_dict())
    attach(model)
    assert {name.split(".")[0] for name in set(model.state_dict()) - before} == {BANK}


def test_detaching_a_model_without_gates_does_nothing(model, batch):
    before = model(*batch)
    detach(model)
    assert torch.equal(model(*batch), before)


def test_gates_can_be_attached_again_after_detaching(model):
    attach(model)
    detach(model)
    assert attach(model, gate="mask").kind == "mask"


@pytest.mark.parametrize("kinds", [["enc-self"], ["cross", "enc-self"], list(KINDS), None])
def test_gates_are_put_on_the_named_kinds_alone(model, kinds):
    bank = attach(model, kinds=kinds)
    assert {site.kind for site in bank.sites} == set(kinds or KINDS)
    assert all(
        (module.gate is not None) == (site in bank.sites) for site, module in find_sites(model).items()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gates_of_one_kind_leave_the_other_kinds_open(model, batch, kind):
    whole = attach(model, gate="mask")
    whole.assign({site: torch.zeros(HEADS) for site in whole.sites if site.kind == kind})
    expected = model(*batch)
    detach(model)
    attach(model, gate="mask", kinds=[kind], xi=torch.zeros(HEADS))
    assert torch.equal(model(*batch), expected)


def test_options_reach_every_gate(model):
    assert all(gate.beta == 0.5 for _, gate in attach(model, beta=0.5).items())


def test_an_unknown_gate_names_the_nearest(model):
    with pytest.raises(ValueError, match="did you mean 'mask'"):
        attach(model, gate="maks")


def test_an_unknown_kind_names_the_nearest(model):
    with pytest.raises(ValueError, match="did you mean 'cross'"):
        attach(model, kinds=["corss"])


def test_an_option_the_gate_does_not_have_is_named(model):
    with pytest.raises(ValueError, match="temperature"):
        attach(model, temperature=0.3)


def test_a_second_bank_is_refused(model):
    attach(model)
    with pytest.raises(ValueError, match="already has gates; detach"):
        attach(model)


@pytest.mark.parametrize(
    "options", [{"gate": "maks"}, {"kinds": ["corss"]}, {"temperature": 0.3}, {"gamma": 0.1}]
)
def test_a_refused_attach_leaves_the_model_as_it_was(model, options):
    with pytest.raises(ValueError):
        attach(model, **options)
    assert all(module.gate is None for module in find_sites(model).values())
    assert getattr(model, BANK, None) is None


def test_a_map_made_for_another_model_names_the_site_it_lacks(make_model):
    xi = attach(make_model(decoder_layers=1), gate="mask").values()
    with pytest.raises(ValueError, match=r"xi has no row of 3 heads for decoder\.1\.dec-self"):
        attach(make_model(), gate="mask", xi=xi)


def test_a_model_whose_attention_has_no_rule_says_where_to_add_one():
    class MyAttention(nn.Module):
        pass

    with pytest.raises(ValueError, match=r"MyAttention.*add one to SITE_RULES"):
        find_sites(nn.ModuleList([MyAttention()]))


def test_an_attention_of_an_odd_path_is_named():
    with pytest.raises(ValueError, match=r"cannot tell the layer of the attention at 'blocks\.0'"):
        find_sites(nn.ModuleDict({"blocks": nn.ModuleList([MultiHeadAttention(8, 2, 4)])}))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_site_without_heads_gets_no_gate(model):
    smaller = Transformer(model.config, 23, 19, {"decoder.0.cross": 0})
    assert HeadSite.at("cross", 0, 0) not in attach(smaller).sites
