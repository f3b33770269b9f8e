"""The loss of each width: the refit against least squares on raw rows, and the model left as it was."""

import copy

import pytest
import torch

from headgates.analysis.batches import batch_loss
from headgates.analysis.levels import RIDGE, Levels, level_losses, text_loss
from headgates.gates import ALL_KINDS, HeadMap, find_sites
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

BATCHES = in_batches(random_pairs()[:7], 3)


@pytest.fixture
def model():
    return random_model()


def levels_of(model, batches) -> Levels:
    sites = [site for site in find_sites(model, ALL_KINDS) if site.heads]
    order = HeadMap(
        {site: torch.randn(site.heads, generator=torch.Generator().manual_seed(4)) for site in sites}
    )
    return Levels(model, batches, order, {site: [0, site.heads // 2, site.heads] for site in sites})


def test_the_refit_is_the_ridge_regression_of_the_output_on_what_is_left(model):
    levels, seen = levels_of(model, BATCHES), []
    site = next(site for site in levels.widths if site.kind == "cross")
    reader, units = copy.deepcopy(model), site.heads // 2
    out = find_sites(reader)[site].out_proj
    out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for batch in BATCHES:
        batch_loss(reader, batch)
    real = [batch.target_out != model.target_specials.padding for batch in BATCHES]
    z = torch.cat([each[where] for each, where in zip(seen, real, strict=True)]).double()
    W, bias = (each.detach().double() for each in (out.weight, out.bias))
    y = z @ W.T + bias
    highest = torch.isin(torch.arange(site.heads), levels.order[site].topk(units).indices)
    stays = highest.repeat_interleave(z.shape[1] // site.heads)
    x, old = z[:, stays] - z[:, stays].mean(0), W[:, stays]
    ridge = RIDGE * x.square().mean() * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    # least ||x w - y||^2 + ridge ||w - old||^2
    slow = torch.linalg.solve(x.T @ x + ridge, x.T @ y + ridge @ old.T).T
    found = levels.refits[site, units].rounded(torch.double)  # kept in the model's own float32
    torch.testing.assert_close(found.weight[:, stays], slow, rtol=1e-5, atol=1e-7)
    assert not found.weight[:, ~stays].any()
    torch.testing.assert_close(found.bias, y.mean(0) - slow @ z[:, stays].mean(0), rtol=1e-5, atol=1e-7)


def test_a_width_is_in_place_within_the_context_and_gone_after_it(model):
    levels, before = levels_of(model, BATCHES), copy.deepcopy(model.state_dict())
    closed = {site: 0 for site in levels.widths}
    with levels.placed(closed):
        assert not any(levels.outputs[site].weight.any() for site in closed)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_the_loss_of_a_width_is_that_of_the_model_with_it_alone(model):
    levels = levels_of(model, BATCHES)
    rises = level_losses(levels, BATCHES)
    assert all(rise == 0 for (site, units), rise in rises.items() if units == site.heads)
    site, whole = next(iter(levels.widths)), text_loss(model, BATCHES)
    out = find_sites(model, ALL_KINDS)[site].out_proj
    with torch.no_grad():
        out.weight.zero_()
        out.bias.copy_(levels.refits[site, 0].bias)
    assert rises[site, 0] == pytest.approx(text_loss(model, BATCHES) - whole, rel=1e-4)
