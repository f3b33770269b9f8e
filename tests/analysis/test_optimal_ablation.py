"""Optimal ablation against zero, the mean, and what its minimum must be."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.batches import batch_loss, query_tokens, sites_of
from headgates.analysis.optimal_ablation import fold_optimal
from headgates.gates import HeadMap, fold_mean, remove, zero_heads
from tests.worlds.families import BY_NAME, ids
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

BATCHES = in_batches(random_pairs()[:7], 3)


forward = batch_loss  # a pass, whose result is not needed


def closing(model: nn.Module) -> HeadMap:
    return HeadMap({site: torch.arange(site.heads) == 1 for site in sites_of(model, None)})


@pytest.mark.parametrize("seed", range(3))
def test_zero_costs_more_than_the_mean_and_the_mean_more_than_the_optimum_on_its_own_text(seed):
    unpruned = random_model(seed).double()
    with torch.no_grad():  # what closed heads output has a large mean
        for site, module in sites_of(unpruned, None).items():
            module.v_proj.bias.unflatten(0, (site.heads, -1))[1:2] += 3.0
    zero, mean, best = (copy.deepcopy(unpruned) for _ in range(3))

    def loss(model: nn.Module, batch) -> Tensor:
        """Cross-entropy to the unpruned model, which as a trained one is near its least loss."""
        real = batch.target_out != model.target_specials.padding
        with torch.no_grad():
            wanted = unpruned(batch.source, batch.target_in)[real].softmax(-1)
        return F.cross_entropy(model(batch.source, batch.target_in)[real], wanted, reduction="sum")

    @torch.no_grad()
    def cost(model: nn.Module) -> float:
        return sum(float(loss(model, batch)) for batch in BATCHES)

    zero_heads(zero, closing(zero))
    fold_mean(mean, closing(mean), BATCHES, forward, positions=query_tokens)
    fold_optimal(best, closing(best), BATCHES, forward, loss=loss, positions=query_tokens)
    before = cost(best)
    assert cost(zero) > cost(mean) > before + 0.1
    flags = [(each.requires_grad, each.grad) for each in best.parameters()]
    assert flags == [(each.requires_grad, None) for each in unpruned.parameters()]
    remove(best, closing(best))
    assert cost(best) == pytest.approx(before, abs=1e-6)


def test_at_the_optimum_of_a_head_the_loss_has_no_slope():
    def slope(fold, **options) -> float:
        """|dL/da| where `fold` left a head's constant, through the bias b + W a."""
        model = random_model().double()
        site, module = list(sites_of(model, None).items())[-1]
        W = module.out_proj.weight.detach().unflatten(1, (site.heads, -1))[:, 0].clone()
        closed = HeadMap({site: torch.arange(site.heads) == 0})
        fold(model, closed, BATCHES, forward, positions=query_tokens, **options)
        total = sum(batch_loss(model, batch) for batch in BATCHES)
        return float((W.T @ torch.autograd.grad(total, module.out_proj.bias)[0]).norm())

    assert slope(fold_optimal, steps=60) < 0.01 * slope(fold_mean)


def test_a_search_that_helps_nothing_leaves_the_better_of_zero_and_mean():
    model, zero, calls = random_model(), random_model(), []
    zero_heads(zero, closing(zero))

    def worse_than_zero(model, batch):  # but at the first bias that is tried, which is that of zero
        calls.append(batch)
        return batch_loss(model, batch) + 1e4 * (len(calls) > len(BATCHES))

    fold_optimal(model, closing(model), BATCHES, forward, loss=worse_than_zero, positions=query_tokens)
    torch.testing.assert_close(model.state_dict(), zero.state_dict(), rtol=0, atol=0)


def test_models_of_other_libraries_take_it_and_nothing_closed_changes_nothing():
    family, labels = BY_NAME["BART"], ids(3, 5).flatten()
    model, mean, batch = family.model(), family.model(), family.batch(3)

    def loss(model, batch) -> Tensor:
        return F.cross_entropy(family.output(model, batch).flatten(0, 1), labels, reduction="sum")

    fold_optimal(model, ~closing(model).map(torch.ones_like), [batch], loss, loss=loss)
    torch.testing.assert_close(model.state_dict(), mean.state_dict(), rtol=0, atol=0)
    fold_mean(mean, closing(mean), [batch], loss)
    fold_optimal(model, closing(model), [batch], loss, loss=loss)
    with torch.no_grad():
        assert loss(model, batch) < loss(mean, batch) - 0.1
