"""Skipped and dropped layers: the model is the one that was built without them, and a refit makes up for
them."""

import copy

import pytest
import torch

from headgates.gates import HeadMap, attach, find_sites, heads_left, remove
from headgates.gates.depth import drop_layers, layers_left, skipped
from headgates.models.ablated_search import ablated_translations
from headgates.models.checkpoint import architecture, build, load_model, save_model
from headgates.models.transformer import Transformer
from tests.worlds.searched_model import BEAM, GREEDY, best_ids, random_model, translator_of
from tests.worlds.slow_reconstruct import (
    closing,
    equal_weights,
    kept_columns,
    refit,
    small_text,
    streamed,
    streams,
    sublayers_by_hand,
)
from tests.worlds.unpruned_model import head_masks

SHAPES = {
    "pre": {},
    "post": {"norm": "post"},
    "ssru": {"decoder_mixer": "ssru"},
    "learned": {"positions": "learned", "max_positions": 13},
}
DEEP = {"encoder_layers": 3, "decoder_layers": 5}
LAYERS = {"encoder": [1], "decoder": [0, 3]}
LEFT = {"encoder": [0, 2], "decoder": [1, 2, 4]}


def by_hand(model: Transformer) -> Transformer:
    """A model that has the layers LEFT from the beginning, and their weights."""
    smaller = build(
        architecture(model) | {"model": vars(model.config) | {"encoder_layers": 2, "decoder_layers": 3}}
    )
    moved = {
        f"{stack}.layers.{new}.": f"{stack}.layers.{old}."
        for stack, numbers in LEFT.items()
        for new, old in enumerate(numbers)
    }
    weights = model.state_dict()
    for name in smaller.state_dict():
        new = next((each for each in moved if name.startswith(each)), "")
        smaller.state_dict()[name].copy_(weights[name.replace(new, moved.get(new, ""), 1)])
    return smaller.eval()


def dropped(model: Transformer, layers=LAYERS) -> Transformer:
    smaller = copy.deepcopy(model)
    drop_layers(smaller, layers)
    return smaller


@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES)
def test_skipped_and_dropped_are_the_model_without_these_layers(make_model, batch, source, settings):
    model = random_model(make_model, **DEEP, **settings)
    before, smaller, expected = model(*batch), dropped(model), by_hand(model)
    logits = expected(*batch)
    assert (logits - before).abs().max() > 0.01
    wanted = {search: best_ids(expected, source, search) for search in (GREEDY, BEAM)}
    with skipped(model, LAYERS):
        for each in (model, smaller):
            torch.testing.assert_close(each(*batch), logits, rtol=0, atol=1e-6)
            assert {search: best_ids(each, source, search) for search in wanted} == wanted
    assert torch.equal(model(*batch), before)
    assert [(name, weight.shape) for name, weight in smaller.state_dict().items()] == [
        (name, weight.shape) for name, weight in expected.state_dict().items()
    ]
    assert find_sites(smaller, "all").keys() == find_sites(expected, "all").keys()


def test_ablations_beside_skipped_layers_are_those_of_the_model_without_them(make_model, lines):
    model = random_model(make_model, **DEEP)
    smaller = translator_of(dropped(model))
    expected = ablated_translations(smaller, lines, head_masks(smaller))
    with skipped(model, LAYERS):
        masks = head_masks(translator_of(model))
        here = [each for each in masks if not any(site.layer in LAYERS[site.stack] for site in each)]
        found = ablated_translations(translator_of(model), lines, here)
    assert 0 < expected.changed_share == found.changed_share
    for i in range(len(here)):
        assert found.hypotheses(i) == expected.hypotheses(i)


def test_a_model_without_layers_and_heads_comes_back_from_its_file_with_both_remembered(
    make_model, batch, tmp_path
):
    model = make_model(**DEEP)
    closed = HeadMap({site: torch.arange(3) == site.layer % 3 for site in find_sites(model)})
    remove(model, closed)
    smaller = dropped(model, {"decoder": [0]})
    drop_layers(smaller, {"encoder": [1], "decoder": [2]})  # the decoder's fourth at first
    save_model(tmp_path / "best.pt", smaller)
    loaded = load_model(tmp_path / "best.pt")
    assert torch.equal(loaded(*batch), dropped(model)(*batch))
    assert loaded.config.encoder_layers == 2
    assert loaded.config.decoder_layers == 3
    for each in (smaller, loaded):
        assert layers_left(each) == {
            "encoder": [True, False, True],
            "decoder": [False, True, True, False, True],
        }
        assert heads_left(each)["decoder.2.cross"].tolist() == [True, False, True]
    assert "layers_left" not in architecture(model)
    description = architecture(smaller)
    description["layers_left"]["decoder"] = [True] * 5
    with pytest.raises(ValueError, match=r"the decoder has 3 layers, but \[True, .*\] are said to be left"):
        build(description)


def test_a_layer_that_was_skipped_before_stays_so_and_an_error_leaves_none_skipped(make_model, batch):
    model = make_model(**DEEP)
    with skipped(model, {"encoder": [1]}):
        with skipped(model, LAYERS):
            assert [layer.skipped for layer in model.decoder.layers] == [True, False, False, True, False]
        with pytest.raises(RuntimeError), skipped(model, LAYERS):
            model(*(ids[:, :, None] for ids in batch))
        assert [layer.skipped for layer in model.encoder.layers] == [False, True, False]
        with pytest.raises(ValueError, match="the encoder would have no layer left"):
            drop_layers(model, {"encoder": [0, 2]})
    assert not any(layer.skipped for layer in (*model.encoder.layers, *model.decoder.layers))


def test_layers_that_cannot_go_are_refused_and_the_model_stays_whole(make_model):
    model = make_model(**DEEP)
    for message, layers in {
        "the decoder has no layer 5: it has 5, counted from 0": {"encoder": [0], "decoder": [5]},
        "the encoder has no layer -1": {"encoder": [-1]},
        "the decoder would have no layer left; leave one of 5 at least": {"decoder": range(5)},
        "expected layers of encoder or decoder, got": {"middle": [1]},
    }.items():
        with pytest.raises(ValueError, match=message):
            drop_layers(model, layers)
        with pytest.raises(ValueError, match=message), skipped(model, layers):
            pass
    with pytest.raises(ValueError, match="layers of a ModuleList cannot be skipped or dropped"):
        drop_layers(model.encoder.layers, {"encoder": [0]})
    attach(model, gate="mask")
    with pytest.raises(ValueError, match="already has gates"):
        drop_layers(model, LAYERS)
    assert len(model.encoder.layers) == 3


# ---------------------------------------------------------------- refits beside skipped layers

CLOSED = {"encoder.0.enc-self": [1], "decoder.2.cross": [0, 2], "decoder.1.dec-ffn": [3, 5]}
# the sub-layers right before skipped ones, and the last of these
AIMS = {"encoder.0.enc-ffn": "encoder.1.enc-ffn", "decoder.2.dec-ffn": "decoder.3.dec-ffn"}


@pytest.mark.parametrize("settings", [SHAPES["pre"], SHAPES["post"]], ids=["pre", "post"])
def test_a_refit_beside_skipped_layers_is_numpys_on_the_model_without_them(make_model, settings):
    unpruned, text = make_model(**DEEP, **settings).double(), small_text()
    expected = copy.deepcopy(unpruned)
    with skipped(expected, LAYERS):
        for name, out in sublayers_by_hand(expected).items():
            stack, layer, _ = name.split(".")
            if int(layer) not in LAYERS[stack]:
                z, now, _ = streams(expected, text, name)
                aim = streams(unpruned, text, AIMS.get(name, name))[2]
                width = (z.shape[1], 1) if name.endswith("ffn") else ()
                refit(out, kept_columns(CLOSED.get(name, []), *width), z, aim - now, 0.1)
    with skipped(unpruned, LAYERS):
        streamed(unpruned, closing(unpruned, CLOSED), text, ridge=0.1)
    equal_weights(unpruned, expected)


def test_a_refit_with_nothing_closed_and_nothing_skipped_changes_no_weight(make_model):
    model = make_model(**DEEP)
    before = copy.deepcopy(model)
    assert streamed(model, closing(model, {}), small_text()) == []
    assert all(map(torch.equal, model.parameters(), before.parameters()))
    with skipped(model, {"decoder": [3]}):
        streamed(model, closing(model, {}), small_text())
    for (name, ours), theirs in zip(model.named_parameters(), before.parameters(), strict=True):
        touched = name.startswith(("decoder.layers.2.feed_forward.outer", "decoder.layers.4."))
        assert touched or torch.equal(ours, theirs), name
