"""Repair towards the residual stream: every sub-layer's refit is numpy's, on matrices that are laid out in
full."""

import copy

import pytest
import torch.nn.functional as F
from torch import nn

from headgates.gates import find_sites, reconstruct, zero_heads
from headgates.models.sublayers import sublayers
from tests.worlds.slow_reconstruct import (
    SOME,
    closing,
    equal_weights,
    forward,
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


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_the_refit_is_numpys_at_every_sublayer_in_forward_order(make_model, text, settings):
    model = make_model(**settings).double()
    expected = slowly_streamed(model, SOME, text, 0.1)
    done = streamed(model, closing(model), text, ridge=0.1)
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


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_the_loss_is_below_that_of_refits_to_the_sites_own_outputs(make_model, text, settings):
    """Targets are what the unpruned model finds likely, so that it has the least loss of all."""
    model, loss = make_model(1, **settings).double(), {}
    wanted = [model(*each).softmax(-1).detach() for each in text]
    for way, given in {zero_heads: (), reconstruct: (text, forward), streamed: (text,)}.items():
        changed = copy.deepcopy(model)
        way(changed, closing(model), *given)
        pairs = zip(text, wanted, strict=True)
        loss[way] = sum(
            F.cross_entropy(changed(*each).flatten(0, 1), p.flatten(0, 1)).item() for each, p in pairs
        )
    assert loss[streamed] < loss[reconstruct] < loss[zero_heads]


def test_models_whose_stream_is_not_known_are_refused(make_model):
    model = nn.ModuleDict({"encoder": make_model().encoder})
    assert find_sites(model)
    with pytest.raises(
        ValueError, match=r"the residual stream of a ModuleDict is not known, .* close with repair"
    ):
        sublayers(model)
