"""Reconstructions of other libraries' models, and the input that a reconstruction refuses."""

import copy
import warnings

import pytest
import torch

from headgates.gates import (
    HeadMap,
    HeadSite,
    attach,
    find_sites,
    fold_mean,
    reconstruct,
    remove,
    rescale,
    zero_heads,
)
from tests.gates.families import BY_NAME
from tests.gates.slow_reconstruct import (
    closing,
    forward,
    small_text,
)


@pytest.fixture
def text():
    return small_text()


@pytest.fixture
def model(make_model):
    return make_model().double()


@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2", "Llama", "BERT", "FSMT", "Whisper"])
def test_other_libraries_models_are_reconstructed(name):
    family = BY_NAME[name]
    model = family.model().double()
    batches = [
        {
            key: tensor.double() if tensor.is_floating_point() else tensor
            for key, tensor in family.batch(b).items()
        }
        for b in (7, 5)
    ]
    # whole groups of heads that share a key head, so that they can go
    closed = HeadMap(
        {site: torch.tensor([h // 2 == site.layer for h in range(site.heads)]) for site in find_sites(model)}
    )
    dense = [family.output(model, each) for each in batches]
    zeroed = copy.deepcopy(model)
    zero_heads(zeroed, closed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reconstruct(model, closed, batches, lambda model, batch: model(**batch))
    reconstructed = [family.output(model, each) for each in batches]
    far, near = (
        sum(float((ours - theirs).detach().square().sum()) for ours, theirs in zip(each, dense, strict=True))
        for each in ([family.output(zeroed, each) for each in batches], reconstructed)
    )
    assert near < far
    remove(model, closed)
    torch.testing.assert_close(family.output(model, batches[0]), reconstructed[0], rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("way", [reconstruct, rescale, fold_mean])
def test_an_empty_text_is_refused_and_nothing_changes(model, way):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="no positions; give at least one sentence"):
        way(model, closing(model), [], forward)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_fewer_positions_than_columns_are_warned_of_and_the_ridge_rises(model, text):
    with pytest.warns(UserWarning, match=r"decoder.1.cross: 3 positions of calibration text for 15 columns"):
        (done,) = reconstruct(
            model, closing(model, {"decoder.1.cross": [0]}), [(text[3][0][:1], text[3][1][:1])], forward
        )
    assert done.ridge == 0.1


@pytest.mark.parametrize(
    ("closed", "error"),
    [
        (HeadMap({HeadSite.at("enc-self", 0, 3): [1.0, 0.0, 0.0]}), "closed must hold bools"),
        (
            HeadMap({HeadSite.at("enc-self", 5, 3): torch.tensor([True, False, False])}),
            "no attention encoder.5.enc-self; did you mean",
        ),
        (
            HeadMap({HeadSite.at("enc-self", 0, 5): torch.ones(5, dtype=torch.bool)}),
            "closed has 5 heads for encoder.0.enc-self",
        ),
        ({}, "expected a HeadMap, got dict"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(model, text, closed, error):
    with pytest.raises(ValueError, match=error):
        reconstruct(model, closed, text, forward)


def test_gates_on_the_model_are_refused(model, text):
    closed = closing(model)
    attach(model, gate="mask")
    with pytest.raises(ValueError, match="already has gates"):
        reconstruct(model, closed, text, forward)


def test_a_negative_ridge_is_refused(model, text):
    with pytest.raises(ValueError, match="expected a ridge of at least 0, got -1"):
        reconstruct(model, closing(model), text, forward, ridge=-1)


def test_an_attention_that_does_not_call_its_projection_is_refused():
    family = BY_NAME["torch.nn.Transformer"]
    model = family.model()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(
        ValueError, match=r"calls the output projection of encoder\.0\.enc-self 0 times; expected once"
    ):
        reconstruct(model, closed, [family.batch(2)], lambda model, batch: model(**batch))


def test_a_mean_without_a_bias_to_take_it_is_refused():
    family = BY_NAME["T5"]
    model = family.model()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(ValueError, match="has no bias to take in the mean"):
        fold_mean(model, closed, [family.batch(2)], lambda model, batch: model(**batch))


def test_a_mask_of_other_positions_is_refused(model, text):
    with pytest.raises(ValueError, match=r"positions gave a mask of shape \(2, 2\)"):
        reconstruct(
            model, closing(model), text, forward, positions=lambda *_: torch.ones(2, 2, dtype=torch.bool)
        )
