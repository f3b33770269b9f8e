"""The loss of each width: the refit against least squares on raw rows, and the model left as it was."""

import copy

import pytest
import torch

from headgates.analysis.batches import batch_loss
from headgates.analysis.levels import Levels, level_losses, text_loss
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
    widths = {site: [0, site.heads // 3, 2 * site.heads // 3, site.heads] for site in sites}
    return Levels(model, batches, order, widths)


@pytest.mark.parametrize("kind", ["cross", "dec-ffn"])
def test_every_width_is_the_ridge_regression_of_the_output_on_what_is_left(model, kind):
    levels, seen = levels_of(model, BATCHES), []
    site = next(site for site in levels.widths if site.kind == kind)
    reader, out = copy.deepcopy(model), levels.outputs[site]
    names = {module: name for name, module in model.named_modules()}
    reader.get_submodule(names[out.out]).register_forward_pre_hook(lambda _, x: seen.append(x[0].detach()))
    for batch in BATCHES:
        batch_loss(reader, batch)
    real = [batch.target_out != model.target_specials.padding for batch in BATCHES]
    z = torch.cat([each[where] for each, where in zip(seen, real, strict=True)]).double()
    W, bias = out.weight.double(), out.bias.double()
    y, spread = z @ W.T + bias, (z - z.mean(0)).square().mean()
    for units in levels.widths[site][1:]:
        highest = torch.isin(torch.arange(site.heads), levels.order[site].topk(units).indices)
        stays = highest.repeat_interleave(z.shape[1] // site.heads)
        x, old = z[:, stays] - z[:, stays].mean(0), W[:, stays]
        ridge = 1e-3 * spread * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        # least ||x w - y||^2 + ridge ||w - old||^2
        slow = torch.linalg.solve(x.T @ x + ridge, x.T @ y + ridge @ old.T).T
        with levels.placed({site: units}):  # in the model's own float32
            found = out.weight.double(), out.bias.double()
        torch.testing.assert_close(found[0][:, stays], slow, rtol=1e-5, atol=1e-6)
        assert not found[0][:, ~stays].any()
        torch.testing.assert_close(found[1], y.mean(0) - slow @ z[:, stays].mean(0), rtol=1e-5, atol=1e-6)


def test_a_width_is_in_place_within_the_context_and_gone_after_it(model):
    levels, before = levels_of(model, BATCHES), copy.deepcopy(model.state_dict())
    closed = {site: 0 for site in levels.widths}
    with levels.placed(closed):
        assert not any(levels.outputs[site].weight.any() for site in closed)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_the_loss_of_a_width_is_that_of_the_model_with_it_alone(model):
    levels = levels_of(model, BATCHES)
    rises = level_losses(levels, BATCHES, levels.widths)
    assert all(rise == 0 for (site, units), rise in rises.items() if units == site.heads)
    site, whole = next(iter(levels.widths)), text_loss(model, BATCHES)
    levels.place(site, 0)
    assert rises[site, 0] == pytest.approx(text_loss(model, BATCHES) - whole, rel=1e-4)
