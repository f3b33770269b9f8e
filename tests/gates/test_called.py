"""What `nn.MultiheadAttention` and fairseq's attention hide, as they read W_O's weight without calling it:
the inputs of W_O, for statistics, refits and factors by sentence."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headgates.analysis.levels import Levels, level_losses
from headgates.analysis.scores.fisher import fisher_blocks
from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.scores.obs import DAMPING, obs
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


def cubes(model, batch):
    """Not of the norm at the end alone, as squares are."""
    return model(**batch).pow(3).sum()


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


def test_statistics_see_what_the_projection_reads():
    model, batch = TORCH.model(), TORCH.batch(3)
    z = inputs_of_the_first(model, batch["src"]).flatten(0, 1).double()
    statistics = site_statistics(model, [batch], forward=forward, queries=every)
    close(statistics[FIRST].gram, z.T @ z / len(z))
    close(statistics[FIRST].mean, z.mean(0))


def by_hand(attention: Any, x: Tensor, memory: Tensor) -> Tensor:
    """z (B, L, H * K), head by head."""
    weights, biases, heads = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), []
    q, k, v = (s @ W.T + b for s, W, b in zip((x, memory, memory), weights, biases, strict=True))
    for h in range(0, D, 2):
        own = slice(h, h + 2)
        heads.append((q[..., own] @ k[..., own].mT / 2**0.5).softmax(-1) @ v[..., own])
    return torch.cat(heads, -1)


def seen_by_hand(model: nn.Module, batch: dict[str, Tensor]) -> dict[HeadSite, tuple[np.ndarray, ...]]:
    """z (N, H * K), W and the gradients g (N, D) of the loss at the outputs, of every attention."""
    seen: dict[HeadSite, list[Any]] = {}

    def keep(site: HeadSite, attention: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        output[0].retain_grad()
        seen[site] = [attention, by_hand(attention, inputs[0], inputs[1]), output[0]]

    sites = find_sites(model)
    handles = [each.register_forward_hook(partial(keep, site)) for site, each in sites.items()]
    cubes(model, batch).backward()
    for handle in handles:
        handle.remove()
    return {
        site: tuple(
            each.detach().double().flatten(0, -2).numpy() for each in (z, own.out_proj.weight, y.grad)
        )
        for site, (own, z, y) in seen.items()
    }


def lost(z: np.ndarray, W: np.ndarray, g: np.ndarray, gone: set[int]) -> float:
    """What is left of the outputs, weighed by the gradients, when least squares has made up for the heads
    that are gone; the damping is more rows."""
    ridge = np.sqrt(DAMPING * z.var(0).mean() * len(z)) * np.eye(D)
    kept = [column for column in range(D) if column // 2 not in gone]
    X = np.block([[z[:, kept], np.ones((len(z), 1))], [ridge[:, kept], np.zeros((D, 1))]])
    Y = np.concatenate([z @ W.T, ridge @ W.T])
    rest = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]
    return float(((rest @ g.T) ** 2).sum() / len(g))


def test_obs_closes_the_head_of_any_site_whose_loss_least_squares_makes_up_for_best():
    model, batch = TORCH.model(), TORCH.batch(3)
    found = obs(model, [batch], loss=cubes, draw=lambda model, batch, _: batch, queries=every)
    seen = seen_by_hand(model, batch)
    gone: dict[HeadSite, set[int]] = {site: set() for site in seen}
    for place in range(6 * len(seen)):
        costs = {
            (site, head): lost(*own, gone[site] | {head}) - lost(*own, gone[site])
            for site, own in seen.items()
            for head in {*range(6)} - gone[site]
        }
        # the next of each site, of which the cheapest closes
        firsts = [
            min((each for each in costs if each[0] == site), key=costs.__getitem__)
            for site in seen
            if len(gone[site]) < 6
        ]
        site, head = min(firsts, key=costs.__getitem__)
        assert found[site][head] == place
        gone[site].add(head)


@torch.no_grad()
def test_the_loss_of_a_level_is_that_of_the_model_with_its_least_squares():
    model, batch = TORCH.model(), TORCH.batch(9)
    scores = HeadMap({site: torch.arange(site.heads) for site in find_sites(model)})
    levels = Levels(model, [batch], scores, {FIRST: [6, 3]}, forward=forward, queries=every)
    losses = level_losses(levels, [batch], levels.widths, loss=cubes)
    slow, z = copy.deepcopy(model), inputs_of_the_first(model, batch["src"]).flatten(0, 1).double()
    out = slow.encoder.layers[0].self_attn.out_proj
    W, bias, left = out.weight.double(), out.bias.double(), slice(6, 12)  # the three heads that score highest
    x = z[:, left] - z[:, left].mean(0)
    ridge = DAMPING * z.var(0, correction=0).mean() * len(z) * torch.eye(6, dtype=x.dtype)
    new = torch.linalg.solve(x.T @ x + ridge, x.T @ (z @ W.T) + ridge @ W[:, left].T).T
    out.weight.zero_()[:, left] = new.float()
    out.bias.copy_(bias + W @ z.mean(0) - new @ z[:, left].mean(0))
    assert losses[FIRST, 6] == 0
    whole = float(cubes(model, batch))
    closed = float(cubes(slow, batch))
    assert losses[FIRST, 3] == pytest.approx(closed - whole, rel=1e-3, abs=1e-5 * abs(whole))
    assert closed != pytest.approx(whole, rel=1e-4)  # it matters


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
