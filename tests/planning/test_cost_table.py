"""Tables of costs: what they predict for a shape is what a model of that shape costs, where costs add up."""

import copy
import json
from dataclasses import asdict

import pytest
import torch

from headgates.configs.json_file import parsed
from headgates.gates import HeadMap, Subnet
from headgates.planning.cost_table import CostTable, cost_table, parameters
from tests.worlds.searched_model import random_model

DEEP = {"encoder_layers": 3, "decoder_layers": 2}


def uneven(model) -> Subnet:
    """Another number of heads or neurons at each site, and a layer less."""
    whole = Subnet.of(model)
    numbers = {site: place % (site.heads + 1) for place, site in enumerate(whole.units)}
    closed = {site: torch.arange(site.heads) >= number for site, number in numbers.items()}
    return whole.without(HeadMap(closed), {"encoder": [1]})


def made_small(model, subnet: Subnet, measure) -> float:
    """What a copy of this part costs."""
    copied = copy.deepcopy(model)
    subnet.remove(copied)
    return measure(copied)


def padded_heads(model) -> float:
    """A runtime that fills every attention up to the most heads of its stack, and takes 5 for a layer."""
    cost = 11.0
    for stack in (model.encoder, model.decoder):
        most = max(
            each.heads
            for layer in stack.layers
            for each in (layer.self_attention, getattr(layer, "cross_attention", layer.self_attention))
        )
        cost += len(stack.layers) * (5 + 3 * most)
    return cost


@pytest.mark.parametrize("decoder_mixer", ["attention", "ssru"])
def test_a_table_of_parameters_predicts_those_of_an_uneven_shape_without_a_layer(make_model, decoder_mixer):
    model = random_model(make_model, decoder_mixer=decoder_mixer, **DEEP)
    table = cost_table(model, parameters, unit="parameters")
    assert table.cost(Subnet.of(model)) == pytest.approx(parameters(model))
    assert table.cost(uneven(model)) == pytest.approx(made_small(model, uneven(model), parameters))


def test_a_table_of_a_model_whose_layers_are_not_alike_counts_each_by_its_own_width(make_model):
    """As of one that was made smaller before: of the widest layer alone, all would cost as much as it."""
    model = random_model(make_model, **DEEP)
    uneven(model).remove(model)
    table = cost_table(model, parameters, unit="parameters")
    whole = Subnet.of(model)
    closed = {site: torch.arange(site.heads) >= site.heads // 2 for site in whole.units}
    for shape in (whole, whole.without(HeadMap(closed)), whole.without(layers={"decoder": [0]})):
        assert table.cost(shape) == pytest.approx(made_small(model, shape, parameters), rel=1e-6)


def test_attentions_that_are_padded_cost_what_the_widest_of_their_stack_does(make_model):
    model = random_model(make_model, **DEEP)
    table, shape = cost_table(model, padded_heads, unit="seconds", padded=True), uneven(model)
    assert table.cost(shape) == pytest.approx(made_small(model, shape, padded_heads))
    assert table.cost(shape) > cost_table(model, padded_heads, unit="seconds").cost(shape)


PART = {"kinds": ["cross"], "padded": False, "widths": [0, 8], "costs": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"rest": float("inf")}, "rest is inf, expected a finite number"),
        ({"layers": []}, "layers is a list, not a Mapping"),
        ({"parts": [PART | {"widths": ["0", "8"]}]}, r"parts\[0\].widths\[0\] is a str, not a float"),
        ({"parts": [PART | {"widths": [0, 4, 8]}]}, "2 costs of 3 widths"),
        ({"parts": [PART | {"widths": [], "costs": []}]}, "0 costs of 0 widths"),
        ({"parts": [PART | {"widths": [8, 0]}]}, r"widths \[8, 0\]; expected rising numbers"),
        ({"parts": [PART | {"widths": [8, 8]}]}, r"widths \[8, 8\]; expected rising numbers"),
        ({"parts": [PART | {"costs": [-1, 2]}]}, r"costs \[-1, 2\]; expected finite numbers"),
        ({"unit": None}, "unit is a NoneType, not a str"),
    ],
)
def test_a_table_comes_back_from_its_file_and_another_content_does_not(make_model, changes, wrong):
    model = random_model(make_model, **DEEP)
    table = cost_table(model, parameters, unit="parameters")
    content = json.loads(json.dumps(asdict(table)))
    assert parsed(content, CostTable).cost(uneven(model)) == table.cost(uneven(model))
    with pytest.raises(ValueError, match=wrong):
        parsed(content | changes, CostTable)


def test_measured_noise_never_makes_a_wider_part_cheaper(make_model):
    model, noise = random_model(make_model, **DEEP), torch.Generator().manual_seed(3)

    def measured(each) -> float:
        return parameters(each) * (1 + 0.2 * float(torch.rand((), generator=noise)))

    for part in cost_table(model, measured, unit="seconds").parts:
        assert list(part.costs) == sorted(part.costs)
        assert part.costs[0] >= 0
