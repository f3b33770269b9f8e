"""reconstruct: the refit is numpy's least squares on matrices that are laid out in full, in order; and
what follows from that."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from headgates.gates import attach, detach, fold_mean, reconstruct, remove, rescale
from headgates.gates.site_walk import SiteWalk
from tests.gates.slow_reconstruct import (
    HEADS,
    ORDER,
    SOME,
    WIDTH,
    closing,
    equal_weights,
    forward,
    laid_out,
    module_at,
    slowly_reconstructed,
    small_text,
)


@pytest.fixture
def text():
    return small_text()


@pytest.fixture
def model(make_model):
    return make_model().double()


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1])
def test_the_refit_is_numpys_at_every_site_in_forward_order(model, text, ridge):
    expected = slowly_reconstructed(model, SOME, text, ridge)
    done = reconstruct(model, closing(model), text, forward, ridge=ridge)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == ORDER[1:]  # nothing is closed before
    assert {each.positions for each in done if each.site.kind == "enc-self"} == {
        sum(len(s) * s.shape[1] for s, _ in text)
    }


def test_the_sites_of_another_order_of_closing_are_refitted_too(model, text):
    heads = {"decoder.0.dec-self": [0, 2]}
    expected = slowly_reconstructed(model, heads, text, 1e-3)
    done = reconstruct(model, closing(model, heads), text, forward, ridge=1e-3)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == ORDER[2:]


def test_padding_positions_do_not_matter(model, batch):
    source, target_in = batch
    many = [(source, target_in)] * 3
    where = lambda name, pair: (pair[0] if "encoder" in name else pair[1]) != 0  # noqa: E731

    def positions(_, site, pair):
        return where(site.name, pair)

    expected = slowly_reconstructed(model, SOME, many, 1e-3, where)
    longer = [(nn.functional.pad(source, (0, 4)), nn.functional.pad(target_in, (0, 3)))] * 3
    for each in (many, longer):
        reconstructed = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few positions are warned of
            reconstruct(reconstructed, closing(model), each, forward, ridge=1e-3, positions=positions)
        equal_weights(reconstructed, expected)


def test_nothing_closed_changes_nothing(model, text):
    before = copy.deepcopy(model.state_dict())
    assert reconstruct(model, closing(model, {}), text, forward) == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_head_that_duplicates_another_is_not_missed(model, text):
    attention = module_at(model, "encoder.0.enc-self")
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.weight[WIDTH : 2 * WIDTH] = projection.weight[:WIDTH]
            projection.bias[WIDTH : 2 * WIDTH] = projection.bias[:WIDTH]
    expected = [model(*each) for each in text]
    closed = closing(model, {"encoder.0.enc-self": [1]})
    (first, *_) = reconstruct(model, closed, text, forward, ridge=0.0)
    assert first.error < 1e-12
    for each, logits in zip(text, expected, strict=True):
        torch.testing.assert_close(model(*each), logits, rtol=1e-6, atol=1e-6)


def test_a_site_without_any_head_gives_the_mean(model, text):
    _, y = laid_out(model, "decoder.0.dec-self", text)
    reconstruct(model, closing(model, {"decoder.0.dec-self": [0, 1, 2]}), text, forward)
    out = module_at(model, "decoder.0.dec-self").out_proj
    np.testing.assert_allclose(out.bias.detach().numpy(), y.mean(0), rtol=1e-9)
    assert not out.weight.any()


@pytest.mark.parametrize("way", [reconstruct, rescale, fold_mean])
def test_masked_and_removed_are_the_reconstructed_model(model, text, way):
    closed = closing(model)
    way(model, closed, text, forward)
    logits = model(*text[0])
    attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
    assert torch.equal(model(*text[0]), logits)  # the closed heads add nothing already
    detach(model)
    count = sum(p.numel() for p in model.parameters())
    removed = remove(model, closed)
    torch.testing.assert_close(model(*text[0]), logits, rtol=1e-9, atol=1e-9)
    assert sum(p.numel() for p in model.parameters()) == count - removed.parameters < count


# ---------------------------------------------------------------- the cheap forms


def test_the_folded_mean_is_that_of_a_slow_loop(model, text):
    expected = {}
    for name, heads in SOME.items():
        z, _ = laid_out(model, name, text)
        out = module_at(model, name).out_proj
        weight, bias = out.weight.detach().numpy().copy(), out.bias.detach().numpy().copy()
        for head in heads:
            for column in range(head * WIDTH, (head + 1) * WIDTH):
                bias += weight[:, column] * z[:, column].mean()
                weight[:, column] = 0.0
        expected[name] = weight, bias
    fold_mean(model, closing(model), text, forward)
    for name, (weight, bias) in expected.items():
        out = module_at(model, name).out_proj
        np.testing.assert_allclose(out.weight.detach().numpy(), weight, rtol=1e-9)
        np.testing.assert_allclose(out.bias.detach().numpy(), bias, rtol=1e-9)


def test_the_factors_are_those_of_a_slow_loop(model, text):
    dense, slow = model, copy.deepcopy(model)
    for name in ORDER[1:]:
        out, kept = module_at(slow, name).out_proj, [h for h in range(HEADS) if h not in SOME.get(name, [])]
        z, _ = laid_out(slow, name, text)
        _, y = laid_out(dense, name, text)
        weight, bias = out.weight.detach().numpy(), out.bias.detach().numpy()
        columns = [slice(h * WIDTH, (h + 1) * WIDTH) for h in kept]
        with torch.no_grad():
            new = torch.zeros_like(out.weight)
            if kept:
                contributions = np.stack(
                    [(z[:, c] @ weight[:, c].T).ravel() for c in columns], axis=1
                )  # (N * D, heads)
                factors = np.linalg.lstsq(contributions, (y - bias).ravel(), rcond=None)[0]
                for c, factor in zip(columns, factors, strict=True):
                    new[:, c] = out.weight[:, c] * factor
            out.weight.copy_(new)
    rescale(model, closing(model), text, forward)
    equal_weights(model, slow)


# ---------------------------------------------------------------- how it walks


class Counted:
    """A text that counts how often it is read, and holds nothing of a batch that was read."""

    def __init__(self, batches):
        self.batches, self.read = batches, 0

    def __iter__(self):
        self.read += 1
        return iter(self.batches)


def test_every_layer_runs_about_once_for_each_batch(model, text):
    calls = dict.fromkeys(["encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"], 0)
    for path in calls:
        inner = model.get_submodule(path).feed_forward
        inner.register_forward_hook(lambda *_, path=path: calls.__setitem__(path, calls[path] + 1))
    counted = Counted(text)
    reconstruct(model, closing(model), counted, forward)
    # for each batch in the model and in its dense copy; one pass more finds out the order, and the last layer
    # never ends
    once = 2 * len(text) + 1
    assert calls == {
        "encoder.layers.0": once,
        "encoder.layers.1": once,
        "decoder.layers.0": once,
        "decoder.layers.1": 0,
    }
    assert counted.read == 1 + len(ORDER[1:])


def test_statistics_of_a_walk_are_those_of_whole_passes_and_it_leaves_nothing(model, text):
    expected = {name: [laid_out(model, name, [each]) for each in text] for name in ORDER}
    state = {name: dict(vars(module)) for name, module in model.named_modules()}
    with SiteWalk(model, forward, fixed=True) as walk:
        assert [site.name for site in walk.order(text[0])] == ORDER
        for site in walk.order(text[0]):
            for number, batch in enumerate(text):
                z, y, _ = walk.see(site, number, batch)
                for ours, theirs in zip((z, y), expected[site.name][number], strict=True):
                    np.testing.assert_allclose(ours.flatten(0, 1).numpy(), theirs, rtol=1e-9)
            walk.leave(site)
        folder = walk.folder
        assert len(list(folder.iterdir())) < len(text) * 5  # layers that are behind leave one state a stack
    assert not folder.exists()
    assert {name: vars(module).keys() for name, module in model.named_modules()} == {
        name: each.keys() for name, each in state.items()
    }
