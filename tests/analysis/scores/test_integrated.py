"""Gradients over a path of gates against closing: W_O's columns scaled by hand, without a gate, in float64.

Activations are smooth: ReLU's slope jumps, so that sums over few points come near its integrals slowly."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.scores.integrated import gauss_legendre, gradient, integrated
from headgates.configs.settings import ModelConfig
from headgates.gates import find_sites
from headgates.models.transformer import Transformer
from tests.worlds.families import BY_NAME, GENERATION, LENGTH, T5, WORDS, Family, hugging_face, ids, pairs

SENTENCES = 2


def ours(norm: str) -> Family:
    config = ModelConfig(
        d_model=12, heads=3, ffn=17, dropout=0.0, embeddings="tied-decoder", norm=norm, activation="gelu"
    )
    return replace(BY_NAME["our own Transformer"], build=partial(Transformer, config, WORDS, WORDS))


START = {"d_kv": 5, "head_dim": 5, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"}
MODELS = {
    "ours, pre-norm": ours("pre"),
    "ours, post-norm": ours("post"),
    "T5": hugging_face("T5", "T5", GENERATION, pairs, *T5, **START),
    **{name: BY_NAME[name] for name in ("Marian", "BART", "BERT", "GPT-2", "Llama")},
}
POINTS = {"T5": 128, "Llama": 64}  # root mean squares near 0 bend the path


def queries(model: nn.Module, site: object, batch: object) -> Tensor:
    return torch.ones(SENTENCES, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("name", MODELS)
def test_three_identities_tie_gradients_to_the_loss_without_heads(name):
    family, target = MODELS[name], ids(SENTENCES, 3).flatten()
    model, batch = family.model().double(), family.batch(SENTENCES)
    sites = list(find_sites(model))

    def cost(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target, reduction="sum")

    def mean_loss(xi: dict) -> Tensor:
        rows = {site.name: row for site, row in xi.items()}
        return cost(family.explicitly(model, batch, rows)) / SENTENCES

    given = dict(loss=lambda m, b: cost(family.output(m, b)), queries=queries)
    one = {site: torch.ones(site.heads, dtype=torch.float64) for site in sites}
    # completeness along the diagonal
    parts = integrated(model, [batch], points=POINTS.get(name, 40), **given)
    total = (mean_loss({site: 0 * row for site, row in one.items()}) - mean_loss(one)).item()
    assert abs(total) > 0.01
    assert float(parts.flat().sum()) == pytest.approx(total, abs=1e-5)
    # one step is -dL/dg at 1, a mean over all sentences
    leaves = {site: row.requires_grad_() for site, row in one.items()}
    slopes = torch.autograd.grad(mean_loss(leaves), list(leaves.values()))
    torch.testing.assert_close(
        gradient(model, [batch] * 2, **given).flat(), -torch.cat(slopes), rtol=1e-5, atol=1e-5
    )
    # the path of one gate, the others open, is the head's exact effect
    points = POINTS.get(name, 40)
    for site, head in ((sites[0], 0), (sites[-1], sites[-1].heads - 1)):
        path = 0.0
        for node, weight in zip(*gauss_legendre(points), strict=True):
            at = {each: row.detach().clone() for each, row in one.items()}
            at[site][head] = node
            at[site].requires_grad_()
            (slope,) = torch.autograd.grad(mean_loss(at), at[site])
            path -= float(weight * slope[head])
        effect = exact_effects(model, [batch], **given)[site][head]
        assert float(effect) == pytest.approx(path, abs=1e-5)


def test_nodes_and_weights_integrate_powers_up_to_twice_their_number_exactly():
    nodes, weights = gauss_legendre(5)
    for power in range(10):
        assert float((weights * nodes**power).sum()) == pytest.approx(1 / (power + 1), abs=1e-12)
