"""A subnet closes, counts and removes the same units and layers, and comes back from its file."""

import copy
import json

import pytest
import torch

from headgates.gates import HeadMap, HeadSite, attach, find_sites, heads_left
from headgates.gates.depth import layers_left
from headgates.gates.subnet import Subnet
from tests.gates.family_checks import close
from tests.worlds.families import BY_NAME

FAMILIES = ["our own Transformer", "BERT", "T5", "GPT-2", "BART"]


def numbers_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def some(model, drop=True) -> Subnet:
    """Without the second head of each attention, every third neuron, and a layer of the last stack."""
    whole = Subnet.of(model)
    closed = {
        site: torch.arange(site.heads) == 1 if site.heads == 3 else torch.arange(site.heads) % 3 == 0
        for site in whole.units
    }
    return whole.without(HeadMap(closed), {[*whole.layers][-1]: [0]} if drop else None)


@pytest.mark.parametrize("name", FAMILIES)
def test_removed_is_closed_and_has_the_parameters_that_were_said(name):
    family = BY_NAME[name]
    model = family.model()
    batch, state, subnet = family.batch(2), copy.deepcopy(model.state_dict()), some(model)
    whole, number = family.output(model, batch), subnet.parameters(model)
    with subnet.closed(model):
        expected = family.output(model, batch)
    assert all(torch.equal(weight, state[key]) for key, weight in model.state_dict().items())
    assert torch.equal(family.output(model, batch), whole)
    assert (whole - expected).abs().max() > 0.01
    subnet.remove(model)
    close(family.output(model, batch), expected)
    assert numbers_of(model) == number < sum(weight.numel() for weight in state.values())
    assert Subnet.of(model) == subnet.kept
    assert subnet.kept.without() == subnet.kept
    assert Subnet.of(model).parameters(model) == number


def test_an_error_within_closed_leaves_the_model_whole():
    family = BY_NAME["GPT-2"]
    model, batch = family.model(), family.batch(2)
    before = family.output(model, batch)
    with pytest.raises(RuntimeError, match="stop"), some(model).closed(model):
        raise RuntimeError("stop")
    assert torch.equal(family.output(model, batch), before)


def test_its_words_and_numbers_count_what_stays():
    subnet = some(BY_NAME["our own Transformer"].model())
    assert subnet.words == "8 of 18 heads, 33 of 68 neurons, 2 of 2 encoder and 1 of 2 decoder layers"
    assert subnet.dropped == {"decoder": [0]}
    assert subnet.units["decoder.0.cross"].tolist() == [False] * 3
    assert some(BY_NAME["BERT"].model(), drop=False).words == "4 of 6 heads, 22 of 34 neurons, 2 of 2 layers"
    assert {site.name for site in subnet.kept.units if site.stack == "decoder"} == {
        "decoder.0.dec-self",
        "decoder.0.cross",
        "decoder.0.dec-ffn",
    }


def test_it_comes_back_from_its_file():
    subnet = some(BY_NAME["our own Transformer"].model())
    assert Subnet.from_json(json.loads(json.dumps(subnet.to_json()))) == subnet


GOOD = """{"version": 1, "sites": {"encoder.0.enc-self": {"of": 3, "stay": [0, 2]}},
           "layers": {"encoder": {"of": 2, "stay": [0]}}}"""
SITE = '{"of": 3, "stay": [0, 2]}'  # of GOOD
WRONG = [
    ('"version": 1', '"version": 2'),
    (', "stay": [0, 2]', ""),
    ('"encoder.0', '"somewhere'),
    ('"encoder.0', '"encoder.1'),  # in a dropped layer
    ('"encoder.0', '"encoder.7'),
    ("[0]", "[]"),
    ('"layers"', '"layer"'),
    *[(SITE, row) for row in ("null", "[0]", '{"of": -1, "stay": []}', '{"of": true, "stay": []}')],
    *[(SITE, f'{{"of": 3, "stay": {stay}}}') for stay in ("[3]", "[2, 0]", "[0, 0]", "[0.0]", '"0"')],
    (SITE, '{"of": 1000000000000, "stay": []}'),
    (GOOD, "null"),
    (GOOD, "[]"),
]


@pytest.mark.parametrize(("part", "wrong"), WRONG)
def test_a_file_that_holds_something_else_is_refused_in_words(part, wrong):
    assert Subnet.from_json(json.loads(GOOD)).dropped == {"encoder": [1]}
    assert part in GOOD
    with pytest.raises(ValueError, match=r"expected|stay|left"):
        Subnet.from_json(json.loads(GOOD.replace(part, wrong, 1)))


def test_what_a_model_has_not_is_refused_and_the_model_stays_whole():
    family = BY_NAME["BERT"]
    model, batch = family.model(), family.batch(2)
    before, whole = family.output(model, batch), Subnet.of(model)
    more = HeadSite.at("enc-self", 0, 5)
    other = Subnet(HeadMap({more: torch.ones(5, dtype=torch.bool)}), whole.layers)
    deeper = Subnet(whole.units, {"encoder": (True, True, False)})
    for wrong, message in ((other, "no encoder.0.enc-self of 5"), (deeper, "not 3 encoder layers")):
        for act in (wrong.remove, wrong.parameters, lambda m, wrong=wrong: wrong.closed(m).__enter__()):
            with pytest.raises(ValueError, match=message):
                act(model)
    for given, message in (
        ({"closed": HeadMap({more: torch.ones(5, dtype=torch.bool)})}, "no site encoder.0.enc-self of 5"),
        ({"closed": HeadMap({site: torch.ones(site.heads) for site in whole.units})}, "must hold bools"),
        ({"layers": {"decoder": [0]}}, "no decoder layer 0"),
        ({"layers": {"encoder": [2]}}, "no encoder layer 2 to drop; known: encoder 0 to 1"),
        ({"layers": {"encoder": ["0"]}}, "no encoder layer '0' to drop"),
        ({"layers": {"encoder": 0}}, "expected a list of numbers for 'encoder', got 0"),
        ({"layers": {"encoder": [0, 1]}}, "no layer left"),
    ):
        with pytest.raises(ValueError, match=message):
            whole.without(**given)
    attach(model)
    with pytest.raises(ValueError, match="already has gates"):
        whole.remove(model)
    assert heads_left(model).flat().all()
    assert layers_left(model) == {"encoder": [True, True]}
    assert torch.equal(family.output(model, batch), before)


def test_a_removal_that_fails_after_the_layers_leaves_the_model_as_it_was():
    family = BY_NAME["Llama"]  # two heads to a key head
    model, batch = family.model(), family.batch(2)
    before, site = family.output(model, batch), list(find_sites(model))[1]
    subnet = Subnet.of(model).without(HeadMap({site: torch.arange(site.heads) == 0}), {"decoder": [0]})
    with pytest.raises(ValueError, match="share one key head"):
        subnet.remove(model)
    assert torch.equal(family.output(model, batch), before)
    assert Subnet.of(model).words.endswith("2 of 2 layers")
