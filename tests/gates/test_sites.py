"""find_sites, attach, detach: every head is found, what is attached can be detached, and closing a head has
one meaning."""

import pytest
import torch
from torch import nn

from headgates.gates import KINDS, HeadMap, HeadSite, attach, detach, find_sites, remove
from headgates.gates.sites import BANK
from headgates.models.attention import MultiHeadAttention

HEADS = 3


def test_every_attention_is_found_in_the_order_of_kinds_and_layers(make_model):
    model = make_model(encoder_layers=3, decoder_layers=2)
    sites = find_sites(model)
    assert [site.name for site in sites] == [
        *(f"encoder.{i}.enc-self" for i in range(3)),
        *(f"decoder.{i}.dec-self" for i in range(2)),
        *(f"decoder.{i}.cross" for i in range(2)),
    ]
    assert all(site.heads == HEADS for site in sites)
    assert sites[HeadSite.at("cross", 1, HEADS)] is model.decoder.layers[1].cross_attention
    assert list(find_sites(nn.ModuleDict({"model": model}))) == list(sites)


@pytest.mark.parametrize("kinds", [["enc-self"], ["cross", "enc-self"], None])
def test_gates_are_put_on_the_named_kinds_alone(make_model, batch, kinds):
    model, other = make_model(), make_model()
    bank = attach(model, gate="mask", kinds=kinds, xi=torch.zeros(HEADS))
    assert {site.kind for site in bank.sites} == set(kinds or KINDS)
    whole = attach(other, gate="mask")
    whole.assign({site: torch.zeros(HEADS) for site in bank.sites})
    assert torch.equal(model(*batch), other(*batch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "maks"}, "did you mean 'mask'"),
        ({"kinds": ["corss"]}, "did you mean 'cross'"),
        ({"temperature": 0.3}, "gate 'l0' cannot be made with the options .*temperature"),
        ({"gamma": 0.1}, "need gamma < 0"),
        ({"share": "layer"}, r"expected share='head'.*got 'layer'"),
        ({"xi": HeadMap({}), "gate": "mask"}, r"xi has no row of 3 heads for encoder\.0\.enc-self"),
    ],
)
def test_a_refused_attach_says_why_and_leaves_the_model_as_it_was(model, options, message):
    with pytest.raises(ValueError, match=message):
        attach(model, **options)
    assert all(module.gate is None for module in find_sites(model).values())
    assert getattr(model, BANK, None) is None


def test_attentions_in_a_list_of_an_odd_name_are_numbered_in_their_order():
    stages = nn.ModuleList(nn.ModuleDict({"mix": MultiHeadAttention(8, 2, 4)}) for _ in range(3))
    names = [site.name for site in find_sites(nn.ModuleDict({"encoder": nn.ModuleDict({"stages": stages})}))]
    assert names == [f"encoder.{place}.enc-self" for place in range(3)]


def attention(heads: int) -> MultiHeadAttention:
    return MultiHeadAttention(8, heads, 4)


def test_encoders_of_one_model_are_told_apart_by_as_much_of_their_paths_as_differs():
    def encoder(heads: int) -> nn.Module:
        return nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList([attention(heads)])})})

    model = nn.ModuleDict({"seen": nn.ModuleDict({"film": encoder(2), "image": encoder(3)})})
    assert {site.name: site.heads for site in find_sites(model)} == {
        "seen.film.encoder.0.enc-self": 2,
        "seen.image.encoder.0.enc-self": 3,
    }


def test_layers_of_stages_are_numbered_through():
    stages = [nn.ModuleDict({"blocks": nn.ModuleList(map(attention, heads))}) for heads in ((2, 2), (4,))]
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList(stages)})})
    assert {site.name: site.heads for site in find_sites(model)} == {
        "encoder.0.enc-self": 2,
        "encoder.1.enc-self": 2,
        "encoder.2.enc-self": 4,
    }


def test_two_attentions_of_a_kind_in_one_layer_are_refused():
    layer = nn.ModuleDict({"here": attention(2), "there": attention(2)})
    with pytest.raises(ValueError, match=r"'encoder\.layers\.0\.there' and another attention .* has several"):
        find_sites(nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList([layer])})}))


class Pipeline:
    def __init__(self, model):
        self.model = model


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda model, bank: attach("t5-small"),
            r"got a str; load it first.*from_pretrained\('t5-small'\)",
        ),
        (lambda model, bank: detach(Pipeline(model)), r"got a Pipeline; give its \.model"),
        (
            lambda model, bank: remove(bank, model),
            r"got a GateBank; the model comes first.*remove\(model",
        ),
        (lambda model, bank: find_sites({}), "got a dict; give the module itself"),
        (lambda model, bank: remove(model, bank.closed), r"got method; call it, as in bank\.closed\(\)"),
    ],
)
def test_what_is_given_in_place_of_a_model_or_its_heads_is_told_from_it(wrong, message, model):
    bank = attach(model)
    with pytest.raises(ValueError, match=message):
        wrong(model, bank)
