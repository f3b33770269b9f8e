"""Head relevance: conservation, the gate's gradient against the step-by-step walk, what it must not depend
on, and models where the answer is known."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

from headgates.analysis import lrp
from headgates.analysis.lrp import Relevance, relevance, share, share_signed
from headgates.analysis.ratio_walk import RatioWalk
from headgates.data.batch import Batch
from headgates.gates import HeadMap, attach, find_sites, remove
from headgates.models.transformer import Transformer
from headgates.tasks.translation import Translation
from tests.worlds.one_by_one import in_batches

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
exact = pytest.mark.parametrize("rule", [ratio(1e-13), None])
aggregations = pytest.mark.parametrize("aggregation", ["step", "sum"])


def batches(size: int = len(PAIRS), pairs: list = PAIRS) -> list[Batch]:
    return in_batches(pairs, size)


def assert_same(found: Relevance, other: Relevance, rtol: float = 1e-9) -> None:
    assert list(found.share) == list(other.share)
    for name, head_map in found.head_maps().items():
        torch.testing.assert_close(head_map.flat(), other.head_maps()[name].flat(), rtol=rtol, atol=rtol)
    assert found.steps == other.steps
    if found.ledger and other.ledger:
        ends = [(each.source, each.target, each.biases, each.eps) for each in (found.ledger, other.ledger)]
        assert ends[0] == pytest.approx(ends[1], rel=rtol, abs=rtol)


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


@pytest.mark.parametrize("rule", [RatioWalk, ratio(0.1)])
@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ({"norm": "post", "embeddings": "separate"}, UNEVEN),
        ({"norm": "pre", "positions": "learned", "max_positions": 11}, EMPTY),
        ({"norm": "post", "activation": "gelu", "embedding_norm": True, "output_bias": True}, ()),
        ({"norm": "post", "activation": "swish", "decoder_mixer": "ssru"}, ()),
    ],
)
@aggregations
def test_relevance_is_conserved(make_model, rule, settings, gone, aggregation):
    """Embeddings + biases + eps = seed, at every step or in every sentence, each term summed by itself."""
    model = make_model(**settings)
    remove(model, shut(model, *gone))
    found = relevance(model.double(), batches(), walk=rule, aggregation=aggregation)
    ledger = found.ledger
    assert ledger.error <= 1e-10
    assert ledger.source + ledger.target + ledger.biases + ledger.eps == pytest.approx(1, rel=1e-4)
    assert ledger.biases != 0
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


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "post", "output_bias": True, "embedding_norm": True, "activation": "gelu"},
        {"norm": "pre", "decoder_mixer": "ssru", "activation": "swish"},
    ],
)
def test_a_translation_s_relevance_begins_at_the_models_own_top_logits(make_model, settings):
    model, batch = make_model(**settings), batches()[0]
    logits, real = model(batch.source, batch.target_in), batch.target_out != 0
    top, found = Translation().top_logits(model, batch)
    torch.testing.assert_close(top, logits.max(-1).values * real)
    assert torch.equal(found, real)


@either_rule
@aggregations
def test_neither_batches_nor_how_many_steps_go_back_at_a_time_count(
    make_model, rule, aggregation, monkeypatch
):
    model = make_model().double()
    found, other = (relevance(model, batches(), walk=rule, aggregation=each) for each in (aggregation, "sum"))
    assert found.steps == sum(len(target) + 1 for _, target in PAIRS)
    torch.testing.assert_close(found.signed.flat(), other.signed.flat(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(dict(other.share), dict(other.signed.map(share)))
    torch.testing.assert_close(dict(other.share_signed), dict(other.signed.map(share_signed)))
    assert (aggregation == "sum") is torch.allclose(found.share.flat(), other.share.flat(), rtol=0.001)
    assert_same(relevance(model, batches(1), walk=rule, aggregation=aggregation), found)
    assert_same(relevance(model, batches(3, PAIRS[::-1]), walk=rule, aggregation=aggregation), found)
    for numbers in (1500, 1):  # the first: two steps of five sentences of seven tokens of width 21
        monkeypatch.setattr(lrp, "NUMBERS", numbers)
        assert_same(relevance(model, batches(), walk=rule, aggregation=aggregation), found)


@either_rule
def test_gates_may_differ_by_sentence(make_model, rule):
    model = make_model().double()
    bank = attach(model, gate="mask")
    xi = {site: torch.rand(2, 3, generator=torch.Generator().manual_seed(site.layer)) for site in bank.sites}
    alone = []
    for i in range(2):
        bank.assign({site: row[i] for site, row in xi.items()})
        alone.append(relevance(model, batches(1, PAIRS[i : i + 1]), walk=rule))
    bank.assign(xi)
    both = relevance(model, batches(2, PAIRS[:2]), walk=rule)
    mean = sum(each.steps * each.share.flat() for each in alone) / sum(each.steps for each in alone)
    torch.testing.assert_close(both.share.flat(), mean, rtol=1e-9, atol=0)


@either_rule
def test_training_and_autocast_change_nothing_and_the_model_is_left_as_it_was(make_model, rule):
    model = make_model(dropout=0.3, attention_dropout=0.2)
    bank = attach(model, gate="l0", kinds=["cross"], log_alpha=0.5)
    expected = relevance(model, batches(), walk=rule)  # gates at their test value
    model.train().encoder.eval()
    before = copy.deepcopy(model.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relevance(model, batches(), walk=rule) == expected
    some = relevance(model, batches(), walk=rule, kinds=["dec-self"]).share
    torch.testing.assert_close(dict(some), dict(expected.share.select(["dec-self"])))
    assert (model.training, model.encoder.training, bank.training) == (True, False, True)
    assert model.head_gates is bank
    for site, module in find_sites(model).items():
        assert module.gate is dict(bank.items()).get(site)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


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


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (PAIRS, {"aggregation": "steps"}, "unknown aggregation 'steps'; did you mean 'step'"),
        (PAIRS, {"kinds": ["crss"]}, "did you mean 'cross'"),
        (PAIRS, {"kinds": ["dec-self"]}, "no heads of the kinds dec-self; name other kinds"),
        ([], {}, "relevance starts at target tokens, got no batch with one"),
    ],
)
def test_bad_requests_are_refused(make_model, data, options, message):
    model = make_model()
    remove(model, shut(model, "decoder.0.dec-self", "decoder.1.dec-self"))
    with pytest.raises(ValueError, match=message):
        relevance(model, batches(pairs=data), **options)
