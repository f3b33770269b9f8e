"""Repair towards the residual stream: every sub-layer's refit is numpy's, on matrices that are laid out in
full."""

import copy

import pytest
from torch import nn

from headgates.gates import find_sites
from headgates.models.sublayers import sublayers
from tests.worlds.slow_reconstruct import (
    SOME,
    closing,
    equal_weights,
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


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_the_refit_is_numpys_at_every_sublayer_in_forward_order(make_model, settings):
    model, text = make_model(**settings).double(), small_text()
    expected = slowly_streamed(model, SOME, text, 0.1)
    done = streamed(model, closing(model), text, ridge=0.1)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == list(sublayers_by_hand(model))[2:]  # nothing is closed before
    of_source = {each.positions for each in done if each.site.name.startswith("encoder")}
    assert of_source == {sum(len(s) * s.shape[1] for s, _ in text)}


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


def test_models_whose_stream_is_not_known_are_refused(make_model):
    model = nn.ModuleDict({"encoder": make_model().encoder})
    assert find_sites(model)
    with pytest.raises(
        ValueError, match=r"the residual stream of a ModuleDict is not known, .* --refit out or none"
    ):
        sublayers(model)
