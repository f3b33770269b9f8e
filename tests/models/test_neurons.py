"""Neurons of feed-forward layers are gated, scored, closed, removed, saved and searched with by the code that
does so with heads."""

import copy
import warnings

import pytest
import torch

from headgates.analysis.batches import batch_loss
from headgates.analysis.scores.fisher import fisher
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.scores.obs import obs
from headgates.analysis.scores.random_score import random_score
from headgates.gates import (
    FFN_KINDS,
    HeadMap,
    attach,
    detach,
    find_sites,
    heads_left,
    load_pruned,
    reconstruct,
    remove,
    save_pruned,
    zero_heads,
)
from headgates.models.ablated_search import ablated_translations
from headgates.models.checkpoint import load_model, save_model
from tests.worlds.one_by_one import in_batches, random_model, random_pairs
from tests.worlds.searched_model import GREEDY, best_ids, masked, translator_of, without
from tests.worlds.searched_model import random_model as searched_model
from tests.worlds.slow_reconstruct import (
    NEURONS,
    closing,
    equal_weights,
    forward,
    slowly_streamed,
    small_text,
    streamed,
)

SHAPES = {"pre": {}, "post": {"norm": "post"}, "ssru": {"decoder_mixer": "ssru"}}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# ---------------------------------------------------------------- one equality


@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES)
def test_a_gate_at_0_zeroed_columns_and_removed_neurons_give_the_same(make_model, batch, settings):
    model = make_model(**settings)
    closed = closing(model, NEURONS)
    assert sum(map(len, NEURONS.values())) == closed.count()
    before = model(*batch)
    masked(model, closed)
    expected = model(*batch)
    detach(model)
    assert torch.equal(model(*batch), before)
    assert (expected - before).abs().max() > 0.01
    zeroed, smaller = copy.deepcopy(model), without(model, closed)
    zero_heads(zeroed, closed)
    torch.testing.assert_close(zeroed(*batch), expected, **CLOSE)
    torch.testing.assert_close(smaller(*batch), expected, **CLOSE)
    gone = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in smaller.parameters())
    neurons = closed.select(FFN_KINDS).count()
    assert gone == neurons * (2 * model.config.d_model + 1) + (closed.count() - neurons) * 7 * (4 * 21 + 3)


@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("gate", ["l0", "subset"])
def test_learned_gates_made_exact_are_the_removed_saved_and_loaded_model(
    make_model,
    batch,
    source,
    settings,
    gate,
    tmp_path,
):
    model, generator = searched_model(make_model, **settings), torch.Generator().manual_seed(5)
    bank = attach(model, gate=gate, kinds="all", multiple=4, target_heads={"heads": 7, "ffn": 24})
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    bank.binarise()
    expected, found = model(*batch), best_ids(model, source, GREEDY)
    smaller = copy.deepcopy(model)
    remove(smaller, bank)
    assert heads_left(smaller, "all") == bank.open()
    torch.testing.assert_close(smaller(*batch), expected, **CLOSE)
    save_pruned(smaller, tmp_path / "pruned")
    again = load_pruned(tmp_path / "pruned", model=searched_model(make_model, **settings))
    torch.testing.assert_close(again(*batch), expected, **CLOSE)
    assert best_ids(again, source, GREEDY) == found


# ---------------------------------------------------------------- refits


@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("stream", [False, True], ids=["out", "out+ffn"])
def test_a_refit_of_neurons_is_numpys_site_by_site(make_model, settings, stream):
    model, text = make_model(**settings).double(), small_text()
    closed = closing(model, NEURONS)
    expected = slowly_streamed(model, NEURONS, text, 0.1, stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few positions
        if stream:
            streamed(model, closed, text, ridge=0.1)
        else:
            reconstruct(model, closed, text, forward, ridge=0.1)
    equal_weights(model, expected)
    logits = model(*text[0])
    remove(model, closed)
    torch.testing.assert_close(model(*text[0]), logits, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- scores

PAIRS = random_pairs()[:5]


def test_importance_is_the_gradient_to_a_factor_on_each_neuron_sentence_by_sentence():
    model = random_model()
    found = raw_importance(model, in_batches(PAIRS, 2), kinds="ffn")
    sums = {site: torch.zeros(site.heads) for site in found}
    for batch in in_batches(PAIRS, 1):
        model.zero_grad()
        batch_loss(model, batch).backward()
        for site, module in find_sites(model, "ffn").items():  # a factor scales a column of the last weight
            sums[site] += (module.outer.weight * module.outer.weight.grad).sum(0).detach().abs()
    for site, row in found.items():
        torch.testing.assert_close(row.float(), sums[site] / len(PAIRS), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("score", [raw_importance, fisher, obs, fluctuation])
def test_scores_of_heads_do_not_depend_on_whether_neurons_are_scored_too(score):
    model, batches = random_model(), in_batches(PAIRS, 3)
    found, heads = (score(model, batches, kinds=kinds) for kinds in ("all", "heads"))
    assert {site.heads for site in found.select("ffn")} == {7}
    both = heads, found.select("heads")
    if score is obs:  # places among all: the heads come in the same order
        both = [each.like(each.flat().argsort()) for each in both]
    torch.testing.assert_close(*map(dict, both))
    assert score(model, batches) == heads


def test_a_random_score_of_heads_is_the_same_beside_one_of_neurons():
    model = random_model()
    assert random_score(model, seed=1, kinds="all").select("heads") == random_score(model, seed=1)


# ---------------------------------------------------------------- files and search


def test_it_comes_back_from_its_files_numbered_as_before(make_model, batch, tmp_path):
    model = make_model()
    closed = closing(model, NEURONS)
    smaller = without(model, closed)
    save_model(tmp_path / "best.pt", smaller)
    save_pruned(smaller, tmp_path / "pruned")
    for loaded in (load_model(tmp_path / "best.pt"), load_pruned(tmp_path / "pruned", model=make_model(1))):
        assert torch.equal(loaded(*batch), smaller(*batch))
        assert heads_left(loaded, "all") == ~closed
        again = closing(model, {**NEURONS, "encoder.0.enc-ffn": [0, 3, 12, 7]})
        remove(loaded, again, original=True)
        torch.testing.assert_close(loaded(*batch), without(model, again)(*batch), **CLOSE)
    assert heads_left(smaller).heads_total == 18, "of heads, where no kinds are named"


def test_ablations_of_neurons_are_the_translations_without_them(make_model, lines):
    model = searched_model(make_model)
    ablations = [
        HeadMap({site: torch.arange(site.heads) % 3 == part})
        for site in find_sites(model, "ffn")
        for part in range(3)
    ]
    found = ablated_translations(translator_of(model), lines, ablations)
    assert found.changed_share > 0
    for number, closed in enumerate(ablations):
        expected = translator_of(without(model, closed)).translate(lines, beam=1)
        assert found.hypotheses(number) == expected
