"""A neuron costs its share of a head's parameters, so that one lambda means one thing."""

import copy

import pytest
import torch
from torch import nn

from headgates.gates import HeadMap, LambdaBudget, attach, find_sites, remove
from headgates.gates.prices import unit_prices
from tests.worlds.families import BY_NAME


def weights_without(model: nn.Module, site) -> int:
    """The numbers in the matrices that go when one head or neuron of a site goes."""
    smaller = copy.deepcopy(model)
    row = torch.zeros(site.heads, dtype=torch.bool)
    row[0] = True
    remove(smaller, HeadMap({site: row}))
    sizes = [sum(p.numel() for p in each.parameters() if p.dim() > 1) for each in (model, smaller)]
    return sizes[0] - sizes[1]


@pytest.mark.parametrize("name", ["ours", "BART", "T5", "GPT-2", "BERT"])
def test_a_neurons_price_is_the_numbers_that_go_with_it_over_those_of_a_head(name, make_model):
    model = make_model() if name == "ours" else BY_NAME[name].model()
    sites = find_sites(model, "all")
    prices = unit_prices(sites)
    head = next(site for site in sites if not site.kind.endswith("ffn") and site.layer == 1)
    neuron = next(site for site in sites if site.kind.endswith("ffn"))
    expected = weights_without(model, neuron) / weights_without(model, head)
    assert prices[neuron] == pytest.approx(expected)
    assert prices[head] == 1
    if name == "ours":
        assert expected == pytest.approx(1 / (2 * 7)), "1 / (2 K)"


def test_one_lambda_pulls_as_hard_for_each_parameter(make_model):
    bank = attach(make_model(), gate="l0", kinds="all", log_alpha=0.3)
    LambdaBudget(0.02).loss(bank, 0).backward()
    for site, gate in bank.items():
        heads = 1 / (2 * 7) if site.kind.endswith("ffn") else 1  # what the gate counts
        pull = heads * bank.gates["encoder/0/enc-self"].log_alpha.grad[0]
        torch.testing.assert_close(gate.log_alpha.grad, pull.expand(gate.heads))
    assert bank.cost_of(bank.open_prob()) == pytest.approx(bank.penalty().item())
    torch.testing.assert_close(bank.penalty("heads") + bank.penalty("ffn"), bank.penalty())


def test_gates_on_neurons_alone_have_the_prices_that_they_have_beside_heads(make_model):
    prices = [attach(make_model(), gate="l0", kinds=kinds).prices for kinds in ("ffn", "all")]
    assert prices[0].items() <= prices[1].items()


def test_a_cost_counts_only_the_sites_that_have_a_price(make_model):
    bank = attach(make_model(), gate="l0", kinds="all", log_alpha=0.3)
    first, *_ = bank.sites
    p = bank.open_prob()
    assert bank.cost({first: 2.5}).item() == pytest.approx(2.5 * float(p[first].sum()))
