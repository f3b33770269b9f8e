"""Neurons close in blocks of the lowest, and gates decide in such blocks."""

import pytest
import torch

from headgates.gates import HardConcrete, Subset, attach
from headgates.gates.blocks import lowest_in_blocks, rounded_up

SITES = (13, 7, 11)  # no multiple of 4 among them


def slowly(rows, count, multiple, at_least):
    """Block by block, as a list of (mean, site, places)."""
    blocks = []
    for site, row in enumerate(rows):
        order = sorted(range(len(row)), key=lambda place: float(row[place]))
        first = len(row) % multiple
        starts = ([0] if first else []) + [*range(first, len(row), multiple)]
        ends = [*starts[1:], len(row)]
        for start, end in zip(starts, ends, strict=True):
            part = order[start:end]
            blocks.append((sum(float(row[place]) for place in part) / len(part), site, part))
    closed = [set() for _ in rows]
    for _, site, part in sorted(blocks, key=lambda block: block[0]):
        if len(rows[site]) - len(closed[site]) - len(part) < at_least:
            continue
        if len(part) > count:
            break
        closed[site] |= {*part}
        count -= len(part)
    return closed


@pytest.mark.parametrize("at_least", [0, 5])
@pytest.mark.parametrize("count", [0, 1, 6, 17, 31])
@pytest.mark.parametrize("multiple", [1, 4])
def test_the_blocks_of_lowest_mean_close_as_a_loop_says(multiple, count, at_least):
    generator = torch.Generator().manual_seed(count)
    rows = [torch.randint(7, (n,), generator=generator) for n in SITES]  # many are equal
    found = lowest_in_blocks(rows, count, [multiple] * 3, at_least=at_least)
    assert [{*row.nonzero().flatten().tolist()} for row in found] == slowly(rows, count, multiple, at_least)


def test_a_layer_is_rounded_up_by_its_next_highest_and_never_loses_an_open_one():
    values = torch.tensor([0.9, 0.1, 0.5, 0.7, 0.2, 0.6, 0.3])
    opened = torch.tensor([True, False, False, False, True, False, False])
    assert rounded_up(opened, values, 3).nonzero().flatten().tolist() == [0, 3, 4], "0.7 is the next"
    assert not rounded_up(opened & False, values, 3).any()
    assert rounded_up(opened | True, values, 3).all(), "all, though 7 is no multiple"


@pytest.mark.parametrize(("gate", "name"), [("l0", "log_alpha"), ("subset", "score")])
def test_learned_gates_keep_a_multiple_of_each_layers_neurons_and_exactly_the_heads(model, gate, name):
    bank = attach(model, gate=gate, kinds="all", multiple=4, target_heads={"heads": 5, "ffn": 21})
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, each in bank.items():
            getattr(each, name).copy_(torch.randn(each.heads, generator=generator))
    opened = bank.open()
    assert opened.select("heads").count() == 5
    neurons = opened.select("ffn")
    left = [int(row.sum()) for row in neurons.values()]
    assert all(count % 4 == 0 or count == 13 for count in left)
    assert 21 <= sum(left) < 21 + 4
    positions = [bank.gates[site.name.replace(".", "/")].position() for site in neurons]
    closed = slowly(positions, 4 * 13 - 21, 4, 0)
    assert [{*(~row).nonzero().flatten().tolist()} for row in neurons.values()] == closed
    bank.binarise()
    for site, each in bank.items():
        assert torch.equal(each(), opened[site].float())


def test_a_price_alone_decides_and_the_layer_is_rounded_up():
    gate = HardConcrete(7)
    gate.multiple = 3
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor([-2.0, 1.0, -1.0, -3.0, -0.5, -4.0, -2.5]))
    assert gate.decision().sum() == 1
    assert gate.exact().nonzero().flatten().tolist() == [1, 2, 4]


def test_what_was_decided_stays_while_the_parameters_move_on():
    gate = Subset(5, target_heads=2)
    with torch.no_grad():
        gate.score.copy_(torch.arange(5.0))
    gate.binarise()
    with torch.no_grad():
        gate.score.neg_()
    assert gate.train()().tolist() == [0, 0, 0, 1, 1]
    gate.binarise()
    assert gate().tolist() == [1, 1, 0, 0, 0]
