"""What `nn.MultiheadAttention` and fairseq's attention hide, as they read W_O's weight without calling it:
the inputs of W_O, for statistics, refits and factors by sentence."""

import copy

import pytest
import torch
from torch import nn

from headgates.analysis.levels import Levels
from headgates.analysis.scores.fisher import fisher_blocks
from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.scores.site_statistics import site_statistics
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.gates import HeadMap, HeadSite, find_sites, fold_mean, reconstruct, resampled
from headgates.gates.called import called
from tests.gates.family_checks import close, trace
from tests.worlds.families import BY_NAME, LENGTH, D, floats

TORCH, FAIRSEQ = BY_NAME["torch.nn.Transformer"], BY_NAME["fairseq (a stand-in of its layout)"]
FIRST = HeadSite.at("enc-self", 0, 6)


def forward(model, batch):
    return model(**batch)


def squares(model, batch):
    return model(**batch).square().sum()


def every(model, site, batch):
    return torch.ones(len(batch["src"]), LENGTH, dtype=torch.bool)


def inputs_of_the_first(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """z (B, L, H * K) of the first layer: its attention with W_O = I and no bias."""
    attention = copy.deepcopy(model.encoder.layers[0].self_attn)
    attention.out_proj.weight = nn.Parameter(torch.eye(D))
    nn.init.zeros_(attention.out_proj.bias)
    return attention(x, x, x)[0].detach()


@pytest.mark.parametrize("family", [TORCH, FAIRSEQ], ids=["torch", "fairseq"])
def test_an_attention_that_is_made_to_call_its_projection_gives_the_same_and_is_put_back(family):
    model, batch = family.model(), family.batch(2)
    expected, before, state = family.output(model, batch), trace(model), copy.deepcopy(model.state_dict())
    calls = []
    with called(model):
        for path in family.outs.values():
            model.get_submodule(path).register_forward_hook(lambda *_: calls.append(1))
        close(family.output(model, batch), expected)
    assert len(calls) == len(family.outs)
    assert trace(model) == before
    assert list(model.state_dict()) == list(state)
    assert torch.equal(family.output(model, batch), expected)


def test_importance_and_fisher_of_a_batch_are_those_of_its_sentences_one_by_one():
    model, batch = TORCH.model(), TORCH.batch(3)
    slopes = []
    for number in range(3):
        one = {name: each[number : number + 1] for name, each in batch.items()}
        xi = {name: torch.ones(6, requires_grad=True) for name in TORCH.outs}
        loss = TORCH.explicitly(model, one, xi).square().sum()
        slopes.append(torch.autograd.grad(loss, list(xi.values())))
    options = dict(loss=squares, queries=every)
    found = raw_importance(model, [batch], **options), fisher_blocks(model, [batch], **options)
    for name, *rows in zip(TORCH.outs, *slopes, strict=True):
        g = torch.stack(rows).double()
        torch.testing.assert_close(found[0][name], g.abs().mean(0), rtol=1e-4, atol=1e-4)
        block = next(each for site, each in found[1].items() if site.name == name)
        torch.testing.assert_close(block, g.T @ g / 3, rtol=1e-3, atol=1e-2)


def test_statistics_see_what_the_projection_reads_and_scores_of_them_and_levels_run():
    model, batch = TORCH.model(), TORCH.batch(3)
    z = inputs_of_the_first(model, batch["src"]).flatten(0, 1).double()
    statistics = site_statistics(model, [batch], forward=forward, queries=every)
    close(statistics[FIRST].gram, z.T @ z / len(z))
    close(statistics[FIRST].mean, z.mean(0))
    scores = HeadMap({site: torch.arange(site.heads) for site in find_sites(model)})
    levels = Levels(model, [batch], scores, {FIRST: [6, 3]}, forward=forward, queries=every)
    old = model.encoder.layers[0].self_attn.out_proj.weight.clone()
    with levels.placed({FIRST: 3}):
        assert not model.encoder.layers[0].self_attn.out_proj.weight[:, :6].any()
    assert torch.equal(model.encoder.layers[0].self_attn.out_proj.weight, old)


def test_the_norm_of_a_head_is_that_of_its_rows_of_the_one_weight():
    model = TORCH.model()
    attention = model.encoder.layers[0].self_attn
    W_V = attention.in_proj_weight[2 * D :].double()
    both = [attention.out_proj.weight[:, [k, k + 1]].double() @ W_V[[k, k + 1]] for k in range(0, D, 2)]
    close(weight_norm(model)[FIRST], torch.stack([each.norm() for each in both]).detach())


@torch.no_grad()
def test_a_refit_and_a_folded_mean_are_those_of_the_inputs_of_the_projection():
    model, batch = TORCH.model(), {"src": floats(9, LENGTH, D), "tgt": floats(9, LENGTH, D).flip(1)}
    closed = HeadMap({FIRST: torch.arange(6) == 1})
    z = inputs_of_the_first(model, batch["src"]).flatten(0, 1).double()
    out, kept = model.encoder.layers[0].self_attn.out_proj, torch.arange(D) // 2 != 1
    y = z @ out.weight.double().T + out.bias.double()
    X = torch.cat([z[:, kept], z.new_ones(len(z), 1)], 1)
    best = torch.linalg.lstsq(X, y).solution
    folded = copy.deepcopy(model)
    reconstruct(model, closed, [batch], forward, ridge=0.0)
    torch.testing.assert_close(out.weight[:, kept].double(), best[:-1].T, rtol=1e-3, atol=1e-4)
    assert not out.weight[:, ~kept].any()
    bias = (
        y.mean(0)
        - z[:, kept].mean(0) @ folded.encoder.layers[0].self_attn.out_proj.weight[:, kept].double().T
    )
    fold_mean(folded, closed, [batch], forward)
    close(folded.encoder.layers[0].self_attn.out_proj.bias.double(), bias)


def test_a_closed_head_is_resampled():
    model, batch = TORCH.model(), TORCH.batch(3)
    plain = TORCH.output(model, batch)
    with resampled(model, HeadMap({FIRST: torch.arange(6) == 1}), [batch], forward):
        assert not torch.allclose(TORCH.output(model, batch), plain)
    assert torch.equal(TORCH.output(model, batch), plain)
