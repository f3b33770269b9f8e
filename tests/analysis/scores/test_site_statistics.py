"""Streamed second moments against those of materialised inputs and gradients, one sentence at a time."""

import pytest
import torch
from torch import Tensor

from headgates.analysis.batches import batch_loss
from headgates.analysis.scores.site_statistics import site_statistics
from headgates.configs.schema import ModelConfig
from headgates.data.batch import Batch, collate
from headgates.gates import HeadSite, attach, detach, find_sites
from headgates.models.transformer import Transformer
from tests.worlds.small_model import stirred

V, HEADS, WIDTH = 31, 3, 5
Pair = tuple[list[int], list[int]]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    settings = {
        "d_model": HEADS * WIDTH,
        "ffn": 13,
        "heads": HEADS,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "dropout": 0.3,
    }
    return stirred(Transformer(ModelConfig(**settings), V, V, {"decoder.0.cross": 2}), 0.2)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths)
        for lengths in [(2, 5), (7, 3), (3, 3), (11, 1), (1, 7), (5, 5), (4, 2)]
    ]


def batches(pairs: list[Pair], size: int) -> list[Batch]:
    return [
        collate(pairs[i : i + size], list(range(i, min(i + size, len(pairs)))), 1)
        for i in range(0, len(pairs), size)
    ]


def materialised(model: Transformer, pairs: list[Pair]) -> dict[HeadSite, tuple[Tensor, Tensor]]:
    """z (N, HK) and dL/dy (N, D) of every site, float64: a pass for each sentence alone, without padding."""
    rows: dict[HeadSite, list[tuple[Tensor, Tensor]]] = {site: [] for site in find_sites(model)}
    for pair in pairs:
        seen: dict[HeadSite, tuple[Tensor, Tensor]] = {}

        def keep(site, inputs, output, seen=seen):
            output.retain_grad()
            seen[site] = inputs[0], output

        handles = [
            module.out_proj.register_forward_hook(
                lambda _, inputs, output, site=site: keep(site, inputs, output)
            )
            for site, module in find_sites(model).items()
        ]
        batch_loss(model, collate([pair], [0], 1)).backward()
        for handle in handles:
            handle.remove()
        for site, (z, y) in seen.items():
            rows[site].append((z.detach()[0].double(), y.grad[0].double()))
    model.zero_grad()
    return {
        site: (torch.cat([z for z, _ in each]), torch.cat([g for _, g in each]))
        for site, each in rows.items()
    }


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_moments_are_those_of_all_positions_whatever_the_batches_and_their_padding(model, pairs, size):
    found = site_statistics(model, batches(pairs, size), loss=batch_loss)
    expected = materialised(model, pairs)
    assert list(found) == list(expected)
    for site, (z, g) in expected.items():
        ours = found[site]
        assert (ours.heads, ours.count) == (site.heads, len(z))
        close = {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(ours.mean, z.mean(0), **close)
        torch.testing.assert_close(ours.gram, z.T @ z / len(z), **close)
        torch.testing.assert_close(ours.covariance, torch.cov(z.T, correction=0), **close)
        torch.testing.assert_close(ours.fisher, g.T @ g / len(g), **close)
        torch.testing.assert_close(ours.weight, find_sites(model)[site].out_proj.weight.detach().double())


def test_without_a_loss_the_inputs_are_the_same_and_there_are_no_gradients(model, pairs):
    with_loss = site_statistics(model, batches(pairs, 3), loss=batch_loss)
    for site, without in site_statistics(model, batches(pairs, 3)).items():
        torch.testing.assert_close(without.gram, with_loss[site].gram)
        assert not without.fisher.any()


def test_kinds_that_were_not_asked_for_are_left_out(model, pairs):
    assert {site.kind for site in site_statistics(model, batches(pairs, 3), kinds=["cross"])} == {"cross"}


def test_the_model_is_left_as_it_was(model, pairs):
    model.train()
    frozen = model.encoder.layers[0].feed_forward.inner.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    site_statistics(model, batches(pairs, 3), loss=batch_loss)
    assert model.training
    assert not frozen.requires_grad
    assert sum(not parameter.requires_grad for parameter in model.parameters()) == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not [module for module in model.modules() if module._forward_hooks]


def test_without_a_sentence_or_where_the_projection_is_not_called_it_says_so(model, pairs):
    with pytest.raises(ValueError, match="at least one batch of sentences, got none"):
        site_statistics(model, [], loss=batch_loss)
    attach(model, gate="mask", xi=torch.ones(()).expand(HEADS), kinds=["enc-self"])
    with pytest.raises(
        ValueError, match=r"encoder\.0\.enc-self: its forward does not call its output projection"
    ):
        site_statistics(model, batches(pairs, 3), loss=batch_loss)
    detach(model)
    assert not [module for module in model.modules() if module._forward_hooks]
