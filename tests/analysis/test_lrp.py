"""Head relevance: conservation, the gate's gradient against the step-by-step walk, what it must not depend
on, and models where the answer is known."""

from dataclasses import astuple, replace
from functools import partial
from typing import Any

import pytest
import torch

from headgates.analysis import lrp
from headgates.analysis.lrp import Relevance, head_shares, relevance, share_signed
from headgates.analysis.ratio_walk import RatioWalk
from headgates.data.batch import Batch
from headgates.gates import HeadMap, attach, find_sites, remove
from headgates.models import cpu_kernels
from headgates.models.transformer import Transformer
from tests.worlds.one_by_one import in_batches
from tests.worlds.small_model import LIBRARIES

PAIRS = [
    ([7, 5, 11, 4, 9, 13], [5, 7]),
    ([8, 6, 22], [18, 4, 9, 11]),
    ([12, 4, 4, 17], [6]),
    ([21], []),
    ([9, 9], [12, 3, 16]),
]


def ratio(eps: float) -> Any:
    return partial(RatioWalk, eps=eps)


either_rule = pytest.mark.parametrize("rule", [None, RatioWalk])  # the gate's gradient, and the ratio rule
aggregations = pytest.mark.parametrize("aggregation", ["step", "sum"])


def batches(size: int = len(PAIRS), pairs: list = PAIRS) -> list[Batch]:
    return in_batches(pairs, size)


def assert_same(found: Relevance, other: Relevance, rtol: float = 1e-9) -> None:
    assert list(found.share) == list(other.share)
    ours, theirs = ([each.flat() for each in one.head_maps().values()] for one in (found, other))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
    assert found.steps == other.steps
    if found.ledger and other.ledger:
        ours, theirs = (replace(one.ledger, error=0.0) for one in (found, other))
        assert astuple(ours) == pytest.approx(astuple(theirs), rel=rtol, abs=rtol)


def shut(model: Transformer, *names: str) -> HeadMap:
    """True at heads "encoder.0.enc-self.1", and at all of a site "encoder.0.enc-self"."""
    return HeadMap(
        {
            site: [site.name in names or f"{site.name}.{h}" in names for h in range(site.heads)]
            for site in find_sites(model)
        }
    )


UNEVEN = "encoder.0.enc-self.0", "encoder.0.enc-self.2", "encoder.1.enc-self.1", "decoder.0.dec-self"
EMPTY = "encoder.1.enc-self", "decoder.1.cross", "decoder.0.dec-self"


@pytest.mark.parametrize("rule", [RatioWalk, ratio(0.1)], ids=["default", "eps 0.1"])
@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ({"norm": "post", "embeddings": "separate"}, UNEVEN),
        ({"norm": "pre", "positions": "learned", "max_positions": 11}, EMPTY),
        ({"norm": "post", "activation": "gelu", "embedding_norm": True, "output_bias": True}, ()),
        ({"norm": "post", "activation": "swish", "decoder_mixer": "ssru"}, ()),
        (LIBRARIES["as T5"], UNEVEN),
    ],
)
@aggregations
def test_relevance_is_conserved(make_model, rule, settings, gone, aggregation):
    """Embeddings + biases + eps = seed, at every step or in every sentence, each term summed by itself."""
    model = make_model(**settings)
    remove(model, shut(model, *gone))
    found = relevance(model.double(), batches(), walk=rule, aggregation=aggregation)
    *ends, error = astuple(found.ledger)
    assert error <= 1e-10
    assert sum(ends) == pytest.approx(1, rel=1e-4)
    assert found.ledger.biases != 0
    assert {site.name for site in found.share} == {site.name for site in find_sites(model) if site.heads}
    for site, row in found.share.items():
        assert (float(row.sum()), float(found.share_signed[site].sum())) == pytest.approx((1, 1)), site.name
        assert (row >= 0).all()


@pytest.mark.parametrize("gated", [True, False])
@aggregations
def test_the_gates_gradient_is_the_walk_without_its_stabiliser(make_model, gated, aggregation):
    model = make_model(norm="post", positions="learned", max_positions=11)
    if gated:
        bank = attach(model, gate="mask", kinds=["cross", "enc-self"])
        bank.assign({site: torch.tensor([0.3, 1.0, 0.0]) for site in bank.sites})
    else:
        remove(model, shut(model, *UNEVEN))
    model.double()
    ours, walk = (
        relevance(model, batches(), walk=walk, aggregation=aggregation) for walk in (None, ratio(1e-14))
    )
    assert_same(ours, walk, rtol=1e-7)


@either_rule
@aggregations
def test_neither_batches_nor_how_many_steps_go_back_at_a_time_count(
    make_model, rule, aggregation, monkeypatch
):
    model = make_model().double()
    found, other = (relevance(model, batches(), walk=rule, aggregation=each) for each in (aggregation, "sum"))
    assert found.steps == sum(len(target) + 1 for _, target in PAIRS)
    torch.testing.assert_close(found.signed.flat(), other.signed.flat(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(dict(other.share), dict(other.signed.map(head_shares)))
    torch.testing.assert_close(dict(other.share_signed), dict(other.signed.map(share_signed)))
    assert (aggregation == "sum") is torch.allclose(found.share.flat(), other.share.flat(), rtol=0.001)
    assert_same(relevance(model, batches(1), walk=rule, aggregation=aggregation), found)
    assert_same(relevance(model, batches(3, PAIRS[::-1]), walk=rule, aggregation=aggregation), found)
    for numbers in (1500, 1):  # the first: two steps of five sentences of seven tokens of width 21
        monkeypatch.setattr(lrp, "TENSOR_NUMBERS", numbers)
        assert_same(relevance(model, batches(), walk=rule, aggregation=aggregation), found)


@either_rule
def test_gates_may_differ_by_sentence(make_model, rule):
    model = make_model().double()
    bank, found = attach(model, gate="mask"), []
    xi = {site: torch.rand(2, 3, generator=torch.Generator().manual_seed(site.layer)) for site in bank.sites}
    for some in (slice(0, 1), slice(1, 2), slice(2)):
        bank.assign({site: row[some].squeeze(0) for site, row in xi.items()})
        found.append(relevance(model, batches(2, PAIRS[some]), walk=rule))
    first, second, both = (each.steps * each.share.flat() for each in found)
    torch.testing.assert_close(both, first + second, rtol=1e-9, atol=0)


@either_rule
def test_training_and_autocast_change_nothing_and_the_model_is_left_as_it_was(make_model, rule):
    model = make_model(dropout=0.3, attention_dropout=0.2)
    bank = attach(model, gate="l0", kinds=["cross"], log_alpha=0.5)
    expected = relevance(model, batches(), walk=rule)  # gates at their test value
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relevance(model, batches(), walk=rule) == expected
    assert all(module.training for module in model.modules())
    assert model.head_gates is bank
    for site, module in find_sites(model).items():
        assert module.gate is dict(bank.items()).get(site)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_a_logit_of_exactly_zero_loses_its_seed_to_eps_and_eps_must_be_positive(make_model):
    model, batch = make_model(), batches()[0]

    def nothing(model: Transformer, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        top = model(batch.source, batch.target_in).amax(2) * 0
        return top, top == 0

    books = RatioWalk(model, batch, logits=nothing).back(torch.ones(1, *batch.target_out.shape))
    assert torch.equal(books["eps"], torch.full_like(books["eps"], batch.target_out.shape[1]))
    assert not books["source"].any()
    with pytest.raises(ValueError, match="needs eps > 0"):
        RatioWalk(model, batch, eps=0.0)


def test_no_text_and_a_misspelt_aggregation_are_refused(make_model):
    with pytest.raises(ValueError, match="relevance starts at target tokens, got no batch with one"):
        relevance(make_model(), [])
    with pytest.raises(ValueError, match="unknown aggregation 'steps'; did you mean 'step'"):
        relevance(make_model(), [], aggregation="steps")


def test_the_ratio_rule_does_not_depend_on_the_kernel_of_attention(make_model, monkeypatch):
    """On a GPU, and of long texts, torch's own kernel adds up the values."""
    model = make_model(embeddings="separate").double()
    found = relevance(model, batches(), walk=ratio(0.1))
    monkeypatch.setattr(cpu_kernels, "LONGEST", 0)
    assert_same(relevance(model, batches(), walk=ratio(0.1)), found)
