"""Counted multiply-adds are half of the floating-point operations that torch counts while the model runs."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import headgates.models.cpu_kernels
from headgates.gates import HeadMap, find_sites, remove
from headgates.models.multiply_adds import PARTS, decoding
from tests.worlds import searched_model
from tests.worlds.searched_model import best_ids, random_model

B, S, T, BEAM = 5, 11, 7, 3
CLOSED = {
    "unpruned": [],
    "empty layers": [[1, 1, 1], [0, 0, 1], [0, 1, 0], [1, 1, 1], [1, 1, 1], [0, 0, 0]],
    "ssru": [],
}


@pytest.fixture(autouse=True)
def products_only(monkeypatch):
    """torch's counter does not see the sums that stand in for small products."""
    monkeypatch.setattr(headgates.models.cpu_kernels, "SMALL_PRODUCT", 0)


@pytest.fixture(params=CLOSED)
def uneven(request, make_model):
    """The small model without some of its heads."""
    model = make_model(decoder_mixer="ssru" if request.param == "ssru" else "attention")
    rows = CLOSED[request.param]
    if rows:
        remove(
            model, HeadMap(dict(zip(find_sites(model), torch.tensor(rows, dtype=torch.bool), strict=True)))
        )
    return model


@pytest.fixture
def source():
    ids = torch.randint(3, 23, (B, S), generator=torch.Generator().manual_seed(1))
    ids[1, 6:] = 0  # padding is computed like any other position
    return ids


def flops(model, run) -> int:
    model = copy.deepcopy(model).requires_grad_(
        False
    )  # torch's counter looks for gradients of whatever could have one
    with FlopCounterMode(display=False) as counter:
        run(model)
    return counter.get_total_flops()


@pytest.mark.parametrize("beam", [1, BEAM])
def test_decoding_takes_as_many_as_torch_counts(uneven, source, beam):
    def search(model) -> None:  # in which every sentence stays open
        state = model.start(source, beam)
        for _ in range(T):
            model.step(torch.full((B * beam,), 5), state)

    counts = decoding(uneven, source=S, steps=[T] * B, beam=beam)
    assert tuple(counts) == PARTS
    assert 2 * sum(counts.values()) == flops(uneven, search)


def test_a_sentence_that_ends_early_costs_what_its_own_steps_cost(model):
    together = decoding(model, source=S, steps=[7, 2, 5], beam=BEAM)
    alone = [decoding(model, source=S, steps=[steps], beam=BEAM) for steps in (7, 2, 5)]
    assert together == {part: sum(each[part] for each in alone) for part in PARTS}


def test_the_steps_of_a_beam_search_are_its_longest_hypotheses(make_model, source):
    """What makes a search countable from its n best: a sentence is open until the last of its hypotheses has
    ended."""
    model = random_model(make_model)
    steps = [max(map(len, best)) + 1 for best in best_ids(model, source, searched_model.BEAM)]
    assert len(set(steps)) > 1
    counts = decoding(model, source=S, steps=steps, beam=BEAM)
    assert 2 * sum(counts.values()) == flops(model, lambda it: best_ids(it, source, searched_model.BEAM))
