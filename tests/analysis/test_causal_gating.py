"""Causal gates against a slow loop, and where it is planted what each head does."""

import copy

import pytest
import torch

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.causal_gating import (
    BOUND,
    CAUSAL_ROLES,
    RATES,
    causal_gates,
    causal_scores,
    gates_of,
    is_labelled,
    means,
    spreads,
)
from headgates.gates import attach
from headgates.gates.sites import BANK
from tests.worlds.families import BY_NAME
from tests.worlds.one_by_one import in_batches, random_model, random_pairs

PAIRS = random_pairs()
TEXT = in_batches(PAIRS[4:7] * 47, 141)  # enough for an update of any number of fits here


def test_gates_are_those_of_torchs_adam_one_fit_after_the_other():
    model, pair = random_model().double(), PAIRS[1]
    batches = in_batches([pair] * 7, 7)  # whichever sentence a fit is dealt, it is this one
    fits = causal_gates(model, batches, seed=3, seeds=2, updates=5, lam=0.7)
    (one,), bank = in_batches([pair], 1), attach(model, gate="mask")

    def value(logits):
        gates = logits.sigmoid().split([site.heads for site in fits[0].free])
        bank.assign(dict(zip(fits[0].free, gates, strict=True)))
        return batch_loss(model, one)

    def descended(logits, lam):
        logits = logits.clone().requires_grad_()
        adam = torch.optim.Adam([logits])
        for t in range(5):
            adam.param_groups[0]["lr"] = RATES[0] + (RATES[1] - RATES[0]) * t / 5
            loss = value(logits) - lam * logits.sum()
            (logits.grad,) = torch.autograd.grad(loss, logits)
            adam.step()
            logits.data.clamp_(-BOUND, BOUND)
        return logits.detach()

    for number, fit in enumerate(fits):
        total, generator = fit.free.heads_total, torch.Generator().manual_seed(3 + number)
        free = descended(torch.rand(total, generator=generator).double(), 0.0)
        expected = free, descended(free, 0.7), descended(free, -0.7)
        for found, logits in zip((fit.free, fit.plus, fit.minus), expected, strict=True):
            torch.testing.assert_close(found.flat(), logits.sigmoid(), rtol=1e-6, atol=1e-8)


def on_paper(loss_of):
    """(model, site, loss): the loss of a sentence is `loss_of` the gates of the first site's three heads."""
    model = random_model()
    site = next(iter(sites_of(model, None)))

    def loss(model, batch):
        xi = dict(getattr(model, BANK).items())[site]()  # (B, H)
        return loss_of(*xi.unbind(1)).sum()

    return model, site, loss


def test_a_head_that_helps_one_that_harms_and_one_that_does_nothing_are_told_apart_in_every_seed():
    model, site, loss = on_paper(lambda a, b, c: 2 * (1 - a) + 2 * b + 0 * c)
    fits = causal_gates(model, TEXT, loss=loss)
    for fit in fits:
        found = {name: is_labelled(fit.quantities, name)[site].tolist() for name in CAUSAL_ROLES}
        assert list(found.values()) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
        unread = is_labelled(fit.quantities, "irrelevance")
        assert all(row.all() for other, row in unread.items() if other != site)
    assert len(fits) == 5


def test_every_fit_is_dealt_as_many_sentences_and_a_seeds_fit_is_not_anothers():
    read = []

    def counted(a, b, c):
        read.append(a.unique(return_counts=True)[1])  # sentences of each fit, as their gates differ
        return a + b + c

    model, _, loss = on_paper(counted)
    fits = causal_gates(model, in_batches(PAIRS, 10), loss=loss, seeds=5, updates=1)
    assert all(counts.tolist() == [2] * 5 for counts in read[:4])  # until each has read 8
    assert len({tuple(fit.free.flat().tolist()) for fit in fits}) == 5


@pytest.mark.parametrize("name", ["torch.nn.Transformer", "T5", "GPT-2"])
def test_models_of_other_libraries_have_causal_gates_whatever_their_attach_mode(name):
    family = BY_NAME[name]
    model, batch, real = family.model(), family.batch(3), torch.ones(3, 5, dtype=torch.bool)
    how = {"loss": lambda *given: family.output(*given).square().sum(), "queries": lambda *_: real}
    before = copy.deepcopy(model.state_dict())
    (fit,) = causal_gates(model, [batch], seeds=1, updates=7, **how)
    assert fit.minus.flat().mean() < fit.plus.flat().mean()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_means_spreads_and_the_file_are_those_of_all_seeds():
    model, batches = random_model(), in_batches(PAIRS[4:7] * 27, 81)
    maps, fits = causal_scores(model, batches, seed=2), causal_gates(model, batches, seed=2)
    assert gates_of(maps) == fits
    for name in CAUSAL_ROLES:
        rows = torch.stack([fit.quantities[name].flat() for fit in fits])
        torch.testing.assert_close(maps[name].flat(), rows.mean(0))
        torch.testing.assert_close(spreads(fits)[name].flat(), rows.std(0))
    assert spreads(fits[:1])["irrelevance"].count() == 0
    labelled = [is_labelled(means(fits), name) for name in CAUSAL_ROLES]
    assert sum(each.count() for each in labelled) == labelled[0].heads_total

    with pytest.raises(ValueError, match="at least one batch"):
        causal_gates(model, [])


@pytest.mark.parametrize(
    "wrong", [{"seeds": 0}, {"updates": 0}, {"lam": 0.0}, {"lam": float("nan")}], ids=str
)
def test_numbers_that_fit_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="expected seeds and updates of at least 1 and lam above 0"):
        causal_gates(random_model(), [], **wrong)
