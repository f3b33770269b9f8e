"""Optimal ablation against zero, the mean, and what its minimum must be."""

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


def forward(model: nn.Module, batch) -> None:
    batch_loss(model, batch)


def closing(model: nn.Module) -> HeadMap:
    return HeadMap({site: torch.arange(site.heads) == 1 for site in sites_of(model, None)})


@torch.no_grad()
def cost(model: nn.Module) -> float:
    return sum(float(batch_loss(model, batch)) for batch in BATCHES)


@pytest.mark.parametrize("seed", range(3))
def test_zero_costs_more_than_the_mean_and_the_mean_more_than_the_optimum_on_its_own_text(seed):
    def model() -> nn.Module:
        made = random_model(seed).double()
        with torch.no_grad():  # what closed heads output has a large mean
            for site, module in sites_of(made, None).items():
                module.v_proj.bias.unflatten(0, (site.heads, -1))[1:2] += 3.0
        return made

    unpruned, zero, mean, best = (model() for _ in range(4))

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
    flags = [each.requires_grad for each in best.parameters()]
    fold_optimal(best, closing(best), BATCHES, forward, loss=loss, positions=query_tokens)
    assert cost(zero) > cost(mean) > cost(best) + 0.1
    assert [each.requires_grad for each in best.parameters()] == flags
    assert all(each.grad is None for each in best.parameters())
    before = cost(best)
    remove(best, closing(best))
    assert cost(best) == pytest.approx(before, abs=1e-6)


def test_no_step_from_the_optimum_of_a_head_costs_less():
    model = random_model().double()
    site, module = list(sites_of(model, None).items())[-1]
    closed = HeadMap({site: torch.arange(site.heads) == 0})
    W = module.out_proj.weight.detach().unflatten(1, (site.heads, -1))[:, 0].clone()

    def slope() -> Tensor:
        """dL/da, through the bias: b + W a."""
        total = sum(batch_loss(model, batch) for batch in BATCHES)
        return W.T @ torch.autograd.grad(total, module.out_proj.bias)[0]

    fold_mean(model, closed, BATCHES, forward, positions=query_tokens)
    at_mean = slope().norm()
    model = random_model().double()
    module = sites_of(model, None)[site]
    fold_optimal(model, closed, BATCHES, forward, positions=query_tokens, steps=60)
    assert slope().norm() < 0.01 * at_mean
    least = cost(model)
    for step in 0.05 * torch.eye(W.shape[1], dtype=torch.float64):
        for sign in (-1, 1):
            with torch.no_grad():
                module.out_proj.bias += sign * (W @ step)
                assert cost(model) >= least - 1e-5
                module.out_proj.bias -= sign * (W @ step)


def test_a_search_that_helps_nothing_leaves_the_better_of_zero_and_mean():
    model, zero = random_model(), random_model()
    zero_heads(zero, closing(zero))
    calls = []

    def worse_than_zero(model, batch):  # but at the first bias that is tried, which is that of zero
        calls.append(batch)
        value = batch_loss(model, batch)
        return value if len(calls) <= len(BATCHES) else value + 1e4

    fold_optimal(model, closing(model), BATCHES, forward, loss=worse_than_zero, positions=query_tokens)
    torch.testing.assert_close(model.state_dict(), zero.state_dict(), rtol=0, atol=0)


def test_models_of_other_libraries_take_it_and_nothing_closed_changes_nothing():
    family = BY_NAME["BART"]
    model, batch, labels = family.model(), family.batch(3), ids(3, 5)

    def loss(model, batch) -> Tensor:
        return F.cross_entropy(family.output(model, batch).flatten(0, 1), labels.flatten(), reduction="sum")

    def run(model, batch) -> None:
        loss(model, batch)

    before = {name: each.clone() for name, each in model.state_dict().items()}
    fold_optimal(model, ~closing(model).map(torch.ones_like), [batch], run, loss=loss)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    mean = family.model()
    fold_mean(mean, closing(mean), [batch], run)
    fold_optimal(model, closing(model), [batch], run, loss=loss)
    with torch.no_grad():
        assert loss(model, batch) < loss(mean, batch) - 0.1
    with pytest.raises(ValueError, match="has no bias to take in the mean"):
        fold_optimal(BY_NAME["T5"].model(), closing(BY_NAME["T5"].model()), [batch], run, loss=loss)
