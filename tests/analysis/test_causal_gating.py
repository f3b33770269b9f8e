"""Causal gates against a slow loop, and where it is planted what each head does."""

import math

import pytest
import torch
import torch.nn.functional as F

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.causal_gating import (
    BOUND,
    LABELS,
    RATES,
    causal_gates,
    causal_scores,
    gates_of,
    is_labelled,
    means,
    spreads,
)
from headgates.gates import HeadMap
from headgates.gates.sites import BANK
from tests.worlds.families import BY_NAME
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

PAIRS = random_pairs()
TEXT = in_batches(PAIRS[4:7] * 47, 141)  # enough for an update of any number of fits here


def test_gates_are_those_of_a_slow_loop_with_its_own_adam_on_scaled_columns():
    model, pair = random_model().double(), PAIRS[1]
    batches = in_batches([pair] * 7, 7)  # whichever sentence a fit is dealt, it is this one
    fits = causal_gates(model, batches, seed=3, seeds=2, updates=5, lam=0.7)
    (one,) = in_batches([pair], 1)
    modules = sites_of(model, None)

    def slope(logits):
        point = logits.detach().requires_grad_()
        rows = point.sigmoid().split([site.heads for site in modules])
        state = dict(model.named_parameters())
        paths = {module: path for path, module in model.named_modules()}
        for (_, module), row in zip(modules.items(), rows, strict=True):
            weight = module.out_proj.weight
            columns = row.repeat_interleave(weight.shape[1] // len(row))
            state[f"{paths[module]}.out_proj.weight"] = weight * columns
        output = torch.func.functional_call(model, state, (one.source, one.target_in))
        value = F.cross_entropy(output.flatten(0, 1), one.target_out.flatten(), reduction="sum")
        return torch.autograd.grad(value, point)[0]

    def descended(logits, lam):
        m, v = torch.zeros_like(logits), torch.zeros_like(logits)
        for t in range(5):
            g = slope(logits) - lam
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            rate = RATES[0] + (RATES[1] - RATES[0]) * t / 5
            step = (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
            logits = (logits - rate * step).clamp(-BOUND, BOUND)
        return logits

    total = sum(site.heads for site in modules)
    for number, fit in enumerate(fits):
        start = torch.rand(total, generator=torch.Generator().manual_seed(3 + number)).double()
        free = descended(start, 0.0)
        expected = free, descended(free, 0.7), descended(free, -0.7)
        for found, logits in zip((fit.free, fit.plus, fit.minus), expected, strict=True):
            torch.testing.assert_close(found.flat(), logits.sigmoid(), rtol=1e-6, atol=1e-8)


def on_paper(loss_of):
    """(model, site, loss): the loss of a sentence is `loss_of` the gates of the first site's three heads and
    1 or -1, by the sentence's number."""
    model = random_model()
    site = next(iter(sites_of(model, None)))

    def loss(model, batch):
        xi = dict(getattr(model, BANK).items())[site]()  # (B, H)
        return loss_of(*xi.unbind(1), 1 - 2 * (batch.index % 2)).sum()

    return model, site, loss


def test_a_head_that_helps_one_that_harms_and_one_that_does_nothing_are_told_apart_in_every_seed():
    model, site, loss = on_paper(lambda a, b, c, _: 2 * (1 - a) + 2 * b + 0 * c)
    fits = causal_gates(model, TEXT, loss=loss)
    for fit in fits:
        found = {name: is_labelled(fit.quantities, name)[site].tolist() for name in LABELS}
        assert list(found.values()) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
        unread = is_labelled(fit.quantities, "irrelevance")
        assert all(row.all() for other, row in unread.items() if other != site)
    assert len(fits) == 5


def test_of_two_heads_either_of_which_is_enough_the_seed_decides_which_is_irrelevant():
    model, _, loss = on_paper(lambda a, b, c, sign: 2 * (1 - a) * (1 - b) + sign * (a - b) + 0 * c)
    fits = causal_gates(model, TEXT, loss=loss, seeds=7, updates=200)
    helps = torch.stack([is_labelled(fit.quantities, "facilitation").flat()[:2] for fit in fits])
    assert (helps.sum(1) == 1).all()
    assert helps.any(0).all()


@pytest.mark.parametrize(("slope", "lam"), [(1.0, 0.1), (3.0, 0.2)])
def test_a_gate_rests_where_the_slope_of_the_loss_is_lambda(slope, lam):
    model, site, loss = on_paper(lambda a, *_: slope * (1 - a))
    (fit,) = causal_gates(model, TEXT, loss=loss, seeds=1, lam=lam, updates=200)
    rest = (1 + math.sqrt(1 - 4 * lam / slope)) / 2  # g (1 - g) slope = lambda, above 1/2
    assert float(fit.minus[site][0]) == pytest.approx(rest, abs=0.01)
    assert float(fit.plus[site][0]) == pytest.approx(1 / (1 + math.exp(-BOUND)))


def test_every_fit_is_dealt_as_many_sentences_and_a_seeds_fit_is_not_anothers():
    read = []

    def counted(a, b, c, sign):
        read.append(a.unique(return_counts=True)[1])  # sentences of each fit, as their gates differ
        return 2 * (1 - a) + 2 * b + sign * c

    model, _, loss = on_paper(counted)
    fits = causal_gates(model, in_batches(PAIRS, 10), loss=loss, seeds=5, updates=1)
    assert all(counts.tolist() == [2] * 5 for counts in read[:4])  # until each has read 8
    assert len({tuple(fit.free.flat().tolist()) for fit in fits}) == 5


@pytest.mark.parametrize("name", ["torch.nn.Transformer", "T5", "GPT-2"])
def test_models_of_other_libraries_have_causal_gates_whatever_their_attach_mode(name):
    family = BY_NAME[name]
    model, batch = family.model(), family.batch(3)

    def loss(model, batch):
        return family.output(model, batch).square().sum()

    before = {key: value.clone() for key, value in model.state_dict().items()}
    (fit,) = causal_gates(
        model, [batch], loss=loss, seeds=1, updates=7, queries=lambda *_: torch.ones(3, 5, dtype=torch.bool)
    )
    assert fit.minus.flat().mean() < fit.plus.flat().mean()
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_means_spreads_and_the_file_are_those_of_all_seeds():
    model, batches = random_model(), in_batches(PAIRS[4:7] * 27, 81)
    maps = causal_scores(model, batches, seed=2)
    fits = causal_gates(model, batches, seed=2)
    assert gates_of(maps) == fits
    for name in LABELS:
        rows = torch.stack([fit.quantities[name].flat() for fit in fits])
        torch.testing.assert_close(maps[name].flat(), rows.mean(0))
        torch.testing.assert_close(means(fits)[name].flat(), rows.mean(0))
        torch.testing.assert_close(spreads(fits)[name].flat(), rows.std(0))
    assert spreads(fits[:1])["irrelevance"].count() == 0
    labelled = [is_labelled(means(fits), name) for name in LABELS]
    assert sum(each.count() for each in labelled) == labelled[0].heads_total


@pytest.mark.parametrize(
    "wrong", [{"seeds": 0}, {"updates": 0}, {"lam": 0.0}, {"lam": float("nan")}], ids=str
)
def test_numbers_that_fit_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="expected seeds and updates of at least 1 and lam above 0"):
        causal_gates(random_model(), in_batches(PAIRS, 3), **wrong)


def test_no_text_is_refused():
    with pytest.raises(ValueError, match="causal gates need at least one batch"):
        causal_gates(random_model(), [], loss=batch_loss)


def test_quantities_are_the_papers():
    fits = causal_gates(random_model(), in_batches(PAIRS[:3], 3), seeds=1, updates=3)
    plus, minus = fits[0].plus.flat(), fits[0].minus.flat()
    quantities = fits[0].quantities
    assert quantities["facilitation"] == fits[0].minus
    assert torch.equal(quantities["interference"].flat(), 1 - plus)
    assert torch.equal(quantities["irrelevance"].flat(), plus * (1 - minus))
    assert isinstance(quantities["irrelevance"], HeadMap)
