"""reconstruct: the refit is numpy's least squares on matrices that are laid out in full, in order; and
what follows from that."""

import copy
import sys
import warnings

import pytest
import torch
import transformers
from torch import nn

from headgates.gates import (
    HeadMap,
    HeadSite,
    attach,
    find_sites,
    fold_mean,
    reconstruct,
    remove,
    zero_heads,
)
from headgates.gates.gram import choose_ridge
from tests.worlds.families import BY_NAME, LENGTH
from tests.worlds.slow_reconstruct import (
    ORDER,
    SOME,
    WIDTH,
    closing,
    equal_weights,
    forward,
    laid_out,
    module_at,
    slowly_streamed,
    small_text,
)


@pytest.fixture
def text():
    return small_text()


@pytest.fixture
def model(make_model):
    return make_model().double()


@pytest.mark.parametrize(
    ("heads", "ridge", "first"), [(SOME, 0.0, 1), (SOME, 0.1, 1), ({"decoder.0.dec-self": [0, 2]}, 1e-3, 2)]
)
def test_the_refit_is_numpys_at_every_site_from_the_first_that_closes(model, text, heads, ridge, first):
    expected = slowly_streamed(model, heads, text, ridge, stream=False)
    done = reconstruct(model, closing(model, heads), text, forward, ridge=ridge)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == ORDER[first:]
    assert {each.positions for each in done if each.site.kind == "enc-self"} <= {
        sum(len(s) * s.shape[1] for s, _ in text)
    }


def test_every_fifth_sentence_of_the_whole_text_is_held_out_for_the_ridge(model, text, monkeypatch):
    seen = []

    def choose(fit, held_out, old):
        seen.append((fit.positions, held_out.positions))
        return choose_ridge(fit, held_out, old)

    monkeypatch.setattr(sys.modules["headgates.gates.reconstruct"], "choose_ridge", choose)
    reconstruct(model, closing(model, {"encoder.0.enc-self": [1]}), text, forward)
    lengths = [len(sentence) for sources, _ in text for sentence in sources]
    assert seen[0] == (sum(lengths) - sum(lengths[4::5]), sum(lengths[4::5]))


METHODS = [reconstruct, fold_mean]


@pytest.mark.parametrize("method", METHODS)
def test_masked_and_removed_are_the_reconstructed_model(model, text, method):
    closed = closing(model)
    method(model, closed, text, forward)
    logits = model(*text[0])
    attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
    assert torch.equal(model(*text[0]), logits)  # the closed heads add nothing already
    remove(model, closed)
    torch.testing.assert_close(model(*text[0]), logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["T5", "GPT-2", "FSMT"])
def test_other_libraries_models_come_closer_to_what_they_were_and_lose_their_heads(name):
    family = BY_NAME[name]
    model = family.model().double()
    batches = [family.batch(sentences) for sentences in (7, 5)]
    closed = HeadMap({site: torch.arange(site.heads) == site.layer for site in find_sites(model)})
    unpruned, zeroed = copy.deepcopy(model), copy.deepcopy(model)
    zero_heads(zeroed, closed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"positions": lambda model, site, batch: torch.ones(len(batch["input_ids"]), LENGTH) > 0}
        reconstruct(model, closed, batches, lambda model, batch: model(**batch), **options)

    def distance(other: nn.Module) -> float:
        pairs = ((family.output(each, batch) for each in (other, unpruned)) for batch in batches)
        return sum(float((ours - theirs).detach().square().sum()) for ours, theirs in pairs)

    assert distance(model) < distance(zeroed)
    expected = family.output(model, batches[0])
    remove(model, closed)
    torch.testing.assert_close(family.output(model, batches[0]), expected, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the mean in the bias


def test_the_folded_mean_is_what_the_closed_heads_add_on_average(model, text):
    slow = copy.deepcopy(model)
    for name, heads in SOME.items():
        z, _ = laid_out(model, name, text)
        out = module_at(slow, name).out_proj
        with torch.no_grad():
            for head in heads:
                own = slice(head * WIDTH, (head + 1) * WIDTH)
                out.bias += out.weight[:, own] @ torch.tensor(z[:, own].mean(0))
                out.weight[:, own] = 0.0
    fold_mean(model, closing(model), text, forward)
    equal_weights(model, slow)


# ---------------------------------------------------------------- how it walks


def test_every_layer_runs_about_once_for_each_batch(model, text):
    calls = dict.fromkeys(["encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"], 0)
    for path in calls:
        inner = model.get_submodule(path).feed_forward
        inner.register_forward_hook(lambda *_, path=path: calls.__setitem__(path, calls[path] + 1))
    reconstruct(model, closing(model), text, forward)
    # for each batch in both models; one pass more finds out the order, and no other ends in the last layer
    once = 2 * len(text) + 1
    assert list(calls.values()) == [once, once, once, 1]
    assert not any("forward" in vars(module) for module in model.modules())  # and leaves nothing


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_text_and_gates_on_the_model_are_refused_and_nothing_changes(model, method):
    before, closed = copy.deepcopy(model), closing(model)
    with pytest.raises(ValueError, match="no positions; give at least one sentence"):
        method(model, closed, [], forward)
    equal_weights(model, before, 0)
    attach(model, gate="mask")
    with pytest.raises(ValueError, match="already has gates"):
        method(model, closed, [], forward)


def test_a_layer_that_runs_several_times_is_refitted_on_all_of_its_calls():
    """By one joint least-squares fit over the inputs of all calls of the unpruned model."""
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=32, embedding_size=16, hidden_size=32, num_attention_heads=4, intermediate_size=48
    )
    config = transformers.AlbertConfig(**sizes, num_hidden_layers=3, initializer_range=0.3)
    model = transformers.AlbertModel(config).double().eval()
    ids = [torch.randint(3, 32, (4, 9)) for _ in range(5)]
    (site,) = find_sites(model, ["enc-self"])
    dense, seen = find_sites(model, ["enc-self"])[site].dense, []
    handle = dense.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    with torch.no_grad():
        for each in ids:
            model(each)
    handle.remove()
    x, y = (torch.cat([row.flatten(0, 1) for row in rows]) for rows in zip(*seen, strict=True))
    x = torch.cat([x[:, 8:], torch.ones(len(x), 1).double()], 1)
    expected = torch.linalg.lstsq(x, y).solution.T
    closed = HeadMap({site: [True, False, False, False]})
    (done,) = reconstruct(model, closed, ids, lambda model, batch: model(batch), ridge=0)
    assert done.positions == 3 * 5 * 4 * 9
    torch.testing.assert_close(torch.cat([dense.weight[:, 8:], dense.bias[:, None]], 1), expected)


def test_batches_that_can_be_read_once_are_refused(model, text):
    with pytest.raises(
        ValueError, match="a list of batches or a loader, which can be read again, got a list_it"
    ):
        reconstruct(model, closing(model), iter(text), forward)


def test_an_error_midway_puts_the_weights_back(model, text):
    before, refitted = copy.deepcopy(model), []

    def positions(_, site, batch):
        if len(refitted) == 2 and site not in refitted:
            raise KeyboardInterrupt
        refitted.extend({site} - {*refitted})

    with pytest.raises(KeyboardInterrupt):
        reconstruct(model, closing(model), text, forward, positions=positions)
    equal_weights(model, before, 0)


def test_fewer_positions_than_columns_are_warned_of_and_the_ridge_rises(model, text):
    closed, little = closing(model, {"decoder.1.cross": [0]}), [(text[3][0][:1], text[3][1][:1])]
    with pytest.warns(UserWarning, match=r"decoder.1.cross: 3 positions of calibration text for 15 columns"):
        (done,) = reconstruct(model, closed, little, forward)
    assert done.ridge == 0.1


FIRST = HeadSite.at("enc-self", 0, 3)


@pytest.mark.parametrize(
    ("closed", "options", "error"),
    [
        (HeadMap({FIRST: [1.0, 0.0, 0.0]}), {}, "closed must hold bools"),
        (HeadMap({HeadSite.at("enc-self", 0, 5): [True] * 5}), {}, "closed has 5 heads for encoder.0.enc-se"),
        (HeadMap({FIRST: [True] * 3}), {"ridge": -1}, "expected a ridge of at least 0, got -1"),
        (
            HeadMap({FIRST: [True] * 3}),
            {"positions": lambda *_: torch.ones(2, 2, dtype=torch.bool)},
            r"positions gave a mask of shape \(2, 2\)",
        ),
    ],
)
def test_a_map_or_option_that_does_not_fit_is_refused(model, text, closed, options, error):
    with pytest.raises(ValueError, match=error):
        reconstruct(model, closed, text, forward, **options)


def test_a_mean_is_not_folded_where_there_is_no_bias():
    family = BY_NAME["T5"]
    model = family.model()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(ValueError, match="has no bias to take in the mean"):
        fold_mean(model, closed, [family.batch(2)], lambda model, batch: model(**batch))
