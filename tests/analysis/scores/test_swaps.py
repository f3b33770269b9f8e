"""Swaps by the loss: what a choice costs against a refit by least squares on materialised inputs, and what a
swap may not change."""

import copy

import numpy as np
import pytest
import torch

from headgates.analysis.batches import batch_loss
from headgates.analysis.scores.obs import DAMPING
from headgates.analysis.scores.swaps import EVERY, promising, swapped
from headgates.configs.schema import ModelConfig
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.models.transformer import Transformer
from tests.analysis.scores.test_site_statistics import batches, materialised, model, pairs  # noqa: F401 - fixtures
from tests.worlds.small_model import stirred


def cost(model, data, closed):  # noqa: F811
    """The loss on every third batch with W_O and b of least squares on the other batches' inputs; the damping
    is more rows."""
    fitted = [batch for number, batch in enumerate(data) if (number + 1) % EVERY]
    rows = [
        ([s for s in source.tolist() if s > 3], [t for t in target.tolist() if t > 3])
        for batch in fitted
        for source, target in zip(batch.source, batch.target_in, strict=True)
    ]
    seen, changed = materialised(model, rows), copy.deepcopy(model)
    for site, module in find_sites(changed).items():
        if not closed[site].any():
            continue
        z, W, b = (
            seen[site][0].numpy(),
            module.out_proj.weight.detach().double().numpy(),
            module.out_proj.bias.detach().double().numpy(),
        )
        columns = (~closed[site]).repeat_interleave(z.shape[1] // len(closed[site])).numpy()
        ridge = np.sqrt(DAMPING * np.mean(np.var(z, axis=0)) * len(z)) * np.eye(z.shape[1])
        X = np.concatenate(
            [np.c_[z[:, columns], np.ones(len(z))], np.c_[ridge[:, columns], np.zeros(len(ridge))]]
        )
        Y = np.concatenate([z @ W.T + b, ridge @ W.T])
        new = np.linalg.lstsq(X, Y, rcond=None)[0]
        with torch.no_grad():
            module.out_proj.weight.zero_()
            module.out_proj.weight[:, torch.tensor(columns)] = torch.tensor(new[:-1].T, dtype=torch.float32)
            module.out_proj.bias.copy_(torch.tensor(new[-1]))
    changed.eval()
    with torch.no_grad():
        return sum(float(batch_loss(changed, batch)) for batch in data[EVERY - 1 :: EVERY])


def random_choice(model, count, seed):  # noqa: F811
    generator = torch.Generator().manual_seed(seed)
    scores = HeadMap(
        {site: torch.rand(site.heads, generator=generator, dtype=torch.float64) for site in find_sites(model)}
    )
    return scores.lowest(count)


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("by_kind", [False, True])
def test_a_swap_lowers_the_loss_of_the_refitted_model_and_keeps_the_numbers(model, pairs, count, by_kind):  # noqa: F811
    data, lowered = batches(pairs, 1), 0
    for seed in range(4):
        closed = random_choice(model, count, seed)
        found = swapped(model, data, closed, by_kind=by_kind)
        assert found.count() == count
        if by_kind:
            assert found.by_kind() == closed.by_kind()
        before, after = cost(model, data, closed), cost(model, data, found)
        assert after <= before * (1 + 1e-6)
        lowered += after < before * (1 - 1e-4)
        assert (found == closed) is (after == pytest.approx(before, rel=1e-6)), "kept where nothing is gained"
    assert lowered >= 2, "or nothing would be tried"


def test_the_model_is_left_as_it_was_also_after_an_error(model, pairs):  # noqa: F811
    before, data, calls = (
        {name: each.clone() for name, each in model.state_dict().items()},
        batches(pairs, 2),
        [],
    )
    model.train()
    swapped(model, data, random_choice(model, 5, 1))

    def fails(model, batch):
        calls.append(1)
        if len(calls) > 10:
            raise RuntimeError("stopped")
        return batch_loss(model, batch)

    with pytest.raises(RuntimeError, match="stopped"):
        swapped(model, data, random_choice(model, 5, 1), loss=fails)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert model.training


def test_a_head_that_says_nothing_changes_places_with_one_that_matters(pairs):  # noqa: F811
    torch.manual_seed(0)
    config = ModelConfig(d_model=15, ffn=13, heads=3, encoder_layers=1, decoder_layers=1)
    planted = stirred(Transformer(config, 31, 31), 0.5)
    silent = next(iter(find_sites(planted)))
    with torch.no_grad():
        find_sites(planted)[silent].out_proj.weight[:, 5:10] = 0.0  # head 1
    closed = HeadMap({site: torch.zeros(site.heads, dtype=torch.bool) for site in find_sites(planted)})
    cross = next(site for site in closed if site.kind == "cross")
    closed[cross][0] = True
    data, whole = batches(pairs, 1), copy.deepcopy(planted).eval()

    def away(model, batch):  # noqa: F811 - from the whole model, which nothing can improve on
        return (model(batch.source, batch.target_in) - whole(batch.source, batch.target_in)).square().sum()

    found = closed
    for _ in range(4):  # one pass tries one swap of a single closed head
        found = swapped(planted, data, found, loss=away)
    assert found[silent].tolist() == [False, True, False]
    assert found.count() == 1
    assert swapped(planted, data, closed, loss=away, by_kind=True)[silent].tolist() == [False] * 3


def test_pairs_are_tried_from_the_most_promising_within_kinds_where_asked():
    encoder, cross = HeadSite.at("enc-self", 0, 2), HeadSite.at("cross", 0, 2)
    choice = {encoder: torch.tensor([True, False]), cross: torch.tensor([True, False])}
    alone = {(encoder, 0): 1.0, (encoder, 1): 5.5, (cross, 0): 2.0, (cross, 1): 5.0}
    assert promising(alone, choice, by_kind=False) == [((encoder, 0), (cross, 1)), ((cross, 0), (encoder, 1))]
    assert promising(alone, choice, by_kind=True) == [((encoder, 0), (encoder, 1)), ((cross, 0), (cross, 1))]
