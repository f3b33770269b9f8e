"""Gradients over paths of gates against closing: W_O's columns scaled by hand, without a gate, in float64.

Activations are smooth: ReLU's slope jumps, so that sums over few points come near its integrals slowly."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.scores.integrated import gauss_legendre, gradient, integrated
from headgates.configs.settings import ModelConfig
from headgates.gates import find_sites
from headgates.models.transformer import Transformer
from tests.worlds.families import BY_NAME, GENERATION, LENGTH, T5, WORDS, Family, hugging_face, ids, pairs
from tests.worlds.one_by_one import random_model

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
    **{name: BY_NAME[name] for name in ("BART", "GPT-2", "Llama")},
}
POINTS = {"T5": (14, 128), "Llama": (36, 64)}  # of both paths: root mean squares near 0 bend them


def queries(model: nn.Module, site: object, batch: object) -> Tensor:
    return torch.ones(SENTENCES, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("name", MODELS)
def test_paths_of_gates_end_in_exact_ablations(name):
    family, target = MODELS[name], ids(SENTENCES, 3).flatten()
    model, batch = family.model().double(), family.batch(SENTENCES)
    sites = list(find_sites(model))
    kind = sites[-1].kind  # cross, where there is some
    alone, together = POINTS.get(name, (14, 40))

    def cost(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target, reduction="sum")

    def mean_loss(xi: dict) -> Tensor:
        rows = {site.name: row for site, row in xi.items()}
        return cost(family.explicitly(model, batch, rows)) / SENTENCES

    given = dict(loss=lambda m, b: cost(family.output(m, b)), queries=queries)
    one = {site: torch.ones(site.heads, dtype=torch.float64) for site in sites}
    whole = mean_loss(one).item()
    # one gate's path is its exact ablation
    own = integrated(model, [batch], path="own", points=alone, kinds=[kind], **given)
    assert {site.kind for site in own} == {kind}
    for site, row in own.items():
        for head, found in enumerate(row.tolist()):
            without = one | {site: (torch.arange(site.heads) != head).double()}
            assert found == pytest.approx(mean_loss(without).item() - whole, abs=1e-5)
    # completeness along the diagonal
    parts = integrated(model, [batch], points=together, **given)
    total = mean_loss({site: 0 * row for site, row in one.items()}).item() - whole
    assert abs(total) > 0.01
    assert float(parts.flat().sum()) == pytest.approx(total, abs=1e-5)
    # one step is -dL/dg at 1, a mean over all sentences
    leaves = {site: row.requires_grad_() for site, row in one.items()}
    slopes = torch.autograd.grad(mean_loss(leaves), list(leaves.values()))
    torch.testing.assert_close(
        gradient(model, [batch] * 2, **given).flat(), -torch.cat(slopes), rtol=1e-5, atol=1e-5
    )


def test_nodes_and_weights_integrate_powers_up_to_twice_their_number_exactly():
    nodes, weights = gauss_legendre(5)
    for power in range(10):
        assert float((weights * nodes**power).sum()) == pytest.approx(1 / (power + 1), abs=1e-12)


def test_a_path_of_no_points_or_another_name_and_no_text_are_refused():
    model = random_model()
    for options in ({"points": 0}, {"path": "square"}):
        with pytest.raises(ValueError, match="expected path 'diagonal' or 'own' and points of at least 1"):
            integrated(model, [], **options)
    with pytest.raises(ValueError, match="gradients need at least one batch"):
        gradient(model, [])
