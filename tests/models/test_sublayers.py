"""Repair towards the residual stream: every sub-layer's refit is numpy's, on matrices that are laid out in
full."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headgates.gates import attach, detach, find_sites, reconstruct, remove, zero_heads
from headgates.models.sublayers import sublayers
from tests.gates.slow_reconstruct import (
    SOME,
    WIDTH,
    closing,
    equal_weights,
    forward,
    module_at,
    slowly_streamed,
    small_text,
    streamed,
    sublayers_by_hand,
)

NORMS = {
    "pre": {},
    "post": {"norm": "post"},
    "both": {"norm": "post", "decoder_norm": "pre", "final_norm": "decoder"},
}


@pytest.fixture
def text():
    return small_text()


@pytest.mark.parametrize("ridge", [1e-4, 0.1])
@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_the_refit_is_numpys_at_every_sublayer_in_forward_order(make_model, text, settings, ridge):
    model = make_model(**settings).double()
    expected = slowly_streamed(model, SOME, text, ridge)
    done = streamed(model, closing(model), text, ridge=ridge)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == list(sublayers_by_hand(model))[2:]  # nothing is closed before
    of_source = {each.positions for each in done if each.site.name.startswith("encoder")}
    assert of_source == {sum(len(s) * s.shape[1] for s, _ in text)}


def test_decoders_with_an_ssru_are_refitted_where_they_have_output_projections(make_model, text):
    model, heads = (
        make_model(decoder_mixer="ssru").double(),
        {"encoder.0.enc-self": [1], "decoder.1.cross": [0, 2]},
    )
    expected = slowly_streamed(model, heads, text, 1e-3)
    done = streamed(model, closing(model, heads), text, ridge=1e-3)
    equal_weights(model, expected)
    assert "decoder.0.dec-self" not in {each.site.name for each in done}


def test_sites_whose_heads_have_gone_are_passed_by(make_model, text):
    model = make_model().double()
    remove(model, closing(model, {"decoder.0.cross": [0, 1, 2]}))
    done = streamed(model, closing(model, {"encoder.1.enc-self": [0]}), text)
    names = [each.site.name for each in done]
    assert "decoder.0.cross" not in names
    assert {"decoder.0.ffn", "decoder.1.ffn"} <= set(names)


def test_padding_positions_do_not_matter(make_model, batch):
    model, (source, target_in) = make_model().double(), batch
    where = lambda name, pair: (pair[0] if "encoder" in name else pair[1]) != 0  # noqa: E731
    expected = slowly_streamed(model, SOME, [batch] * 3, 1e-3, where)
    longer = nn.functional.pad(source, (0, 4)), nn.functional.pad(target_in, (0, 3))
    for each in (batch, longer):
        repaired = copy.deepcopy(model)
        streamed(
            repaired,
            closing(model),
            [each] * 3,
            ridge=1e-3,
            positions=lambda _, site, pair: where(site.name, pair),
        )
        equal_weights(repaired, expected)


def test_nothing_closed_changes_nothing(make_model, text):
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    assert streamed(model, closing(model, {}), text) == []
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_a_head_that_writes_nothing_is_not_missed(make_model, text, settings):
    """The old weights give what is aimed at, and the ridge pulls to them."""
    model = make_model(**settings)
    with torch.no_grad():
        module_at(model, "encoder.0.enc-self").out_proj.weight[:, WIDTH : 2 * WIDTH] = 0
    before, expected = copy.deepcopy(model), [model(*each) for each in text]
    done = streamed(model, closing(model, {"encoder.0.enc-self": [1]}), text)
    assert max(each.error for each in done) < 1e-9
    assert len(done) == len(sublayers_by_hand(model))
    equal_weights(model, before, 1e-5)
    for each, logits in zip(text, expected, strict=True):
        torch.testing.assert_close(model(*each), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_masked_and_removed_are_the_repaired_model(make_model, text, settings):
    model = make_model(**settings).double()
    closed = closing(model)
    streamed(model, closed, text)
    logits = model(*text[0])
    attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
    assert torch.equal(model(*text[0]), logits)  # the closed heads add nothing already
    detach(model)
    remove(model, closed)
    torch.testing.assert_close(model(*text[0]), logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_the_loss_is_below_that_of_refits_to_the_sites_own_outputs(make_model, settings, seed):
    """Targets are what the dense model finds likely, so that it has the least loss of all."""
    model = make_model(seed, **settings).double()
    text, ways = (
        small_text() * 2,
        {
            "zero": lambda m, closed, *_: zero_heads(m, closed),
            "repair": reconstruct,
            "stream": streamed_as_a_way,
        },
    )
    wanted = [model(*each).softmax(-1).detach() for each in text]
    loss = {}
    for name, way in ways.items():
        changed = copy.deepcopy(model)
        way(changed, closing(model), text, forward)
        pairs = zip(text, wanted, strict=True)
        loss[name] = sum(
            F.cross_entropy(changed(*each).flatten(0, 1), p.flatten(0, 1)).item() for each, p in pairs
        )
    assert loss["stream"] < loss["repair"] < loss["zero"]


def streamed_as_a_way(model, closed, text, _):
    streamed(model, closed, text)


def test_the_matrices_alone_are_kept(make_model, text, monkeypatch):
    """However often the text is repeated, the numbers in living tensors at a sub-layer's end are as many."""
    seen = []
    monkeypatch.setattr(
        "headgates.gates.gram.torch.linalg.eigh",
        lambda xx, eigh=torch.linalg.eigh: seen.append(living()) or eigh(xx),
    )
    for repeats in (1, 5):
        model = make_model()
        streamed(model, closing(model), text * repeats, ridge=1e-3)
    half = len(seen) // 2
    assert half == len(sublayers(model)) - 2
    assert seen[:half] == seen[half:]


def living() -> int:
    gc.collect()
    tensors = {id(each): each.numel() for each in gc.get_objects() if type(each) is torch.Tensor}
    return sum(tensors.values())


def test_models_whose_stream_is_not_known_are_refused(make_model):
    model = nn.ModuleDict({"encoder": make_model().encoder})
    assert find_sites(model)
    with pytest.raises(
        ValueError, match=r"the residual stream of a ModuleDict is not known, .* close with repair"
    ):
        sublayers(model)
