"""Head relevance: conservation, what it must not depend on, and models where the answer is known."""

import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headgates.analysis import lrp
from headgates.analysis.lrp import Relevance, relevance, share, share_signed
from headgates.data.batch import Batch, collate
from headgates.gates import HeadMap, attach, detach, find_sites, remove
from headgates.models.lrp_rules import Account, Ratio
from headgates.models.lrp_walk import Walk
from headgates.models.transformer import Transformer

PAIRS = [
    ([7, 5, 11, 4, 9, 13], [5, 7]),
    ([8, 6, 22], [18, 4, 9, 11]),
    ([12, 4, 4, 17], [6]),
    ([21], []),
    ([9, 9], [12, 3, 16]),
]


def ratio(eps: float) -> Any:
    return partial(Walk, rule=Ratio(eps=eps))


WALKS = [Walk, ratio(0.1)]
BOTH = [None, Walk]  # the gate's gradient, and the ratio rule
NEAR_GRADIENT = ratio(1e-13)
F64 = torch.float64


def batches(size: int = len(PAIRS), pairs: list = PAIRS) -> list[Batch]:
    return [
        collate(pairs[i : i + size], list(range(i, min(i + size, len(pairs)))), 1)
        for i in range(0, len(pairs), size)
    ]


def assert_same(found: Relevance, other: Relevance, rtol: float = 1e-9) -> None:
    assert list(found.share) == list(other.share)
    for name, head_map in found.head_maps().items():
        torch.testing.assert_close(head_map.flat(), other.head_maps()[name].flat(), rtol=rtol, atol=rtol)
    assert found.steps == other.steps
    if found.ledger is None or other.ledger is None:
        assert found.ledger is other.ledger
        return
    ends = [
        [each.source, each.target, each.biases, each.eps, each.seed] for each in (found.ledger, other.ledger)
    ]
    assert ends[0] == pytest.approx(ends[1], rel=rtol, abs=rtol)


def shut(model: Transformer, *names: str) -> HeadMap:
    """True at heads "encoder.0.enc-self.1"."""
    return HeadMap(
        {
            site: torch.tensor([f"{site.name}.{h}" in names for h in range(site.heads)])
            for site in find_sites(model)
        }
    )


UNEVEN = (
    "encoder.0.enc-self.0",
    "encoder.0.enc-self.2",
    "encoder.1.enc-self.1",
    *(f"decoder.0.dec-self.{h}" for h in range(3)),
)
EMPTY = (
    *(f"encoder.1.enc-self.{h}" for h in range(3)),
    *(f"decoder.1.cross.{h}" for h in range(3)),
    *UNEVEN[3:],
)


@pytest.mark.parametrize("rule", WALKS)
@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ({"norm": "pre"}, ()),
        ({"norm": "post"}, UNEVEN),
        ({"norm": "pre", "positions": "learned", "max_positions": 11}, EMPTY),
        ({"norm": "post", "embeddings": "separate", "encoder_layers": 1, "decoder_layers": 3}, ()),
        ({"norm": "post", "activation": "gelu", "embedding_norm": True, "output_bias": True}, ()),
        ({"norm": "post", "activation": "swish", "decoder_mixer": "ssru"}, ()),
    ],
)
@pytest.mark.parametrize(("aggregation", "seed"), [("step", "one"), ("sum", "logit")])
def test_relevance_is_conserved(make_model, rule, settings, gone, aggregation, seed):
    """Embeddings + biases + eps = seed, at every step or in every sentence, each term summed by itself."""
    model = make_model(**settings)
    remove(model, shut(model, *gone))
    found = relevance(model.double(), batches(), walk=rule, aggregation=aggregation, seed=seed)
    ledger = found.ledger
    assert ledger.error <= 1e-10
    assert ledger.source + ledger.target + ledger.biases + ledger.eps == pytest.approx(ledger.seed, rel=1e-4)
    assert ledger.biases != 0
    assert {site.name for site in found.share} == {site.name for site in find_sites(model) if site.heads}
    for site, row in found.share.items():
        assert float(row.sum()) == pytest.approx(1), site.name
        assert (row >= 0).all()
        assert float(found.share_signed[site].sum()) == pytest.approx(1), site.name


def test_without_biases_all_relevance_reaches_the_embeddings(make_model):
    model = make_model().double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    ledger = relevance(model, batches(), walk=ratio(1e-12)).ledger
    assert ledger.source + ledger.target == pytest.approx(1, abs=1e-9)
    assert (ledger.biases, ledger.seed) == (0, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "pre"},
        {"norm": "post", "output_bias": True, "embedding_norm": True, "activation": "gelu"},
        {"norm": "pre", "decoder_mixer": "ssru", "activation": "swish"},
    ],
)
def test_the_walk_begins_at_the_models_own_top_logits(make_model, settings):
    model, batch = make_model(**settings), batches()[0]
    logits = model(batch.source, batch.target_in)
    real = batch.target_out != 0
    with torch.no_grad():
        walk = Walk(model, batch)
    torch.testing.assert_close(walk.logits[real], logits.max(-1).values[real])
    assert torch.equal(walk.best[real], logits.argmax(-1)[real])
    assert not walk.logits[~real].any()


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("aggregation", ["step", "sum"])
def test_a_sentence_alone_has_the_relevance_it_has_in_a_batch(make_model, rule, aggregation):
    model = make_model().double()
    whole = relevance(model, batches(), walk=rule, aggregation=aggregation)
    assert_same(relevance(model, batches(1), walk=rule, aggregation=aggregation), whole)
    assert_same(relevance(model, batches(3, PAIRS[::-1]), walk=rule, aggregation=aggregation), whole)


@pytest.mark.parametrize("rule", BOTH)
def test_steps_may_go_back_few_at_a_time(make_model, rule, monkeypatch):
    model = make_model().double()
    whole = relevance(model, batches(), walk=rule)
    monkeypatch.setattr(lrp, "NUMBERS", 1500)  # two steps of five sentences of seven tokens of width 21
    assert_same(relevance(model, batches(), walk=rule), whole)
    monkeypatch.setattr(lrp, "NUMBERS", 1)
    assert_same(relevance(model, batches(), walk=rule), whole)


@pytest.mark.parametrize("rule", BOTH)
def test_both_aggregations_have_the_same_signed_relevance_and_shares_of_their_own(make_model, rule):
    model = make_model().double()
    step, total = (
        relevance(model, batches(), walk=rule, aggregation=aggregation) for aggregation in ("step", "sum")
    )
    for site in step.signed:
        torch.testing.assert_close(step.signed[site], total.signed[site], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(total.share[site], share(total.signed[site]))
        torch.testing.assert_close(total.share_signed[site], share_signed(total.signed[site]))
    assert not torch.allclose(step.share.flat(), total.share.flat(), rtol=0.001)
    assert step.steps == total.steps == sum(len(target) + 1 for _, target in PAIRS)
    if step.ledger and total.ledger:
        assert (step.ledger.source, step.ledger.biases) == pytest.approx(
            (total.ledger.source, total.ledger.biases)
        )


@torch.no_grad()
@pytest.mark.parametrize("rule", BOTH)
def test_the_seed_scales_signed_relevance_and_leaves_the_shares_of_a_step(make_model, rule):
    model, one_step = make_model().double(), batches(1, [([7, 5, 11], [])])
    one, logit = (relevance(model, one_step, walk=rule, seed=seed) for seed in ("one", "logit"))
    value = float(model(one_step[0].source, one_step[0].target_in).max())
    if rule is Walk:
        assert (one.ledger.seed, logit.ledger.seed) == pytest.approx((1, value))
    torch.testing.assert_close(logit.share.flat(), one.share.flat(), rtol=1e-9, atol=0)
    torch.testing.assert_close(logit.share_signed.flat(), one.share_signed.flat(), rtol=1e-9, atol=0)
    torch.testing.assert_close(logit.signed.flat(), one.signed.flat() * value, rtol=1e-9, atol=0)


def columns(model: Transformer, site: str, heads: list[int]) -> Tensor:
    """W_O's columns of these heads, (D, heads, K)."""
    module = next(module for each, module in find_sites(model).items() if each.name == site)
    return module.out_proj.weight.data.unflatten(1, (module.heads, -1))[:, heads]


@pytest.mark.parametrize("rule", [*WALKS, None])
@pytest.mark.parametrize("aggregation", ["step", "sum"])
def test_heads_that_write_nothing_get_nothing_and_a_head_that_writes_alone_gets_all(
    make_model, rule, aggregation
):
    model = make_model().double()
    for site in find_sites(model):
        module = find_sites(model)[site]
        weight = module.out_proj.weight.data.unflatten(1, (3, -1))
        if site.layer == 0:
            weight[:, 1] = 0
        else:
            weight[:, [0, 2]] = 0
    found = relevance(model, batches(), walk=rule, aggregation=aggregation)
    for site, row in found.share.items():
        if site.layer == 0:
            assert row[1] == 0
            assert (row[[0, 2]] > 0).all()
            assert found.signed[site][1] == 0
        else:
            assert row.tolist() == [0, 1, 0]


@pytest.mark.parametrize("rule", [NEAR_GRADIENT, None])
def test_what_a_head_writes_alike_into_all_units_has_no_relevance(make_model, rule):
    """Every norm above takes the mean away, so such a head cannot change a logit."""
    model = make_model(norm="pre").double()
    module = model.decoder.layers[1].cross_attention
    module.out_proj.weight.data.unflatten(1, (3, -1))[:, 2] = 0.7
    found = relevance(model, batches(), walk=rule)
    assert float(found.share["decoder.1.cross"][2]) < 1e-9
    assert float(found.share["decoder.1.cross"][1]) > 0.1


@pytest.mark.parametrize("rule", [NEAR_GRADIENT, None])
def test_gates_are_part_of_the_model(make_model, rule):
    """A shut head has none, like a removed one; a gate of 0.3 is that factor on the head's columns of W_O."""
    model = make_model().double()
    closed = shut(model, *UNEVEN)
    bank = attach(model, gate="mask")
    bank.assign({site: torch.where(row, 0.0, 0.3) for site, row in closed.items()})
    gated = relevance(model, batches(), walk=rule)
    assert (gated.share.flat()[closed.flat()] == 0).all()
    assert (gated.signed.flat()[closed.flat()] == 0).all()
    assert (gated.share.flat()[~closed.flat()] > 0).all()
    detach(model)
    for module in find_sites(model).values():
        module.out_proj.weight.data *= torch.tensor(0.3)  # float32, as gates are
    remove(model, closed)
    cut = relevance(model, batches(), walk=rule)
    torch.testing.assert_close(cut.signed.flat(), gated.signed.flat()[~closed.flat()], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(cut.share.flat(), gated.share.flat()[~closed.flat()], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", BOTH)
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


@pytest.mark.parametrize("rule", BOTH)
def test_learned_gates_are_taken_at_their_test_value_even_in_training(make_model, rule):
    model = make_model()
    bank = attach(model, gate="l0", log_alpha=0.5)
    first = relevance(model.train(), batches(), walk=rule)
    assert bank.training
    assert relevance(model, batches(), walk=rule) == first


def test_only_the_kinds_asked_for_are_given(make_model):
    model = make_model()
    every, some = relevance(model, batches()), relevance(model, batches(), kinds=["cross", "enc-self"])
    assert some.share == every.share.select(["cross", "enc-self"])
    assert some.signed == every.signed.select(["cross", "enc-self"])


def test_the_result_becomes_json(make_model):
    for rule, seed in ((Walk, 1), (None, None)):
        found = relevance(make_model(), batches(), walk=rule)
        content = json.loads(json.dumps(found.to_json()))
        for name in ("share", "share_signed", "signed"):
            assert HeadMap.from_json(content[name]) == getattr(found, name)
        assert (content["ledger"] and content["ledger"]["seed"]) == seed
        assert content["steps"] == found.steps


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(make_model, training, rule):
    model = make_model(dropout=0.3, attention_dropout=0.2)
    expected = relevance(model, batches(), walk=rule)
    model.train(training)
    model.encoder.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert relevance(model, batches(), walk=rule) == expected  # dropout is off
    assert (model.training, model.encoder.training, model.decoder.training) == (training, False, training)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("rule", BOTH)
def test_autocast_around_it_changes_nothing(make_model, rule):
    model = make_model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = relevance(model, batches(), walk=rule)
    assert inside == relevance(model, batches(), walk=rule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "steps"}, "unknown aggregation 'steps'; did you mean 'step'"),
        ({"seed": "two"}, "unknown seed 'two'; known: one, logit"),
        ({"kinds": ["crss"]}, "did you mean 'cross'"),
        (
            {"kinds": ["dec-self"]},
            "no heads of the kinds dec-self, so they have no relevance; name other kinds",
        ),
    ],
)
def test_bad_requests_are_refused(make_model, options, message):
    model = make_model()
    remove(model, shut(model, *(f"decoder.{layer}.dec-self.{h}" for layer in range(2) for h in range(3))))
    with pytest.raises(ValueError, match=message):
        relevance(model, batches(), **options)


@pytest.mark.parametrize("none", [[], iter(())])
def test_no_batch_is_refused(make_model, none):
    with pytest.raises(ValueError, match="relevance starts at target tokens, got no batch with one"):
        relevance(make_model(), none)


def test_a_logit_of_exactly_zero_loses_its_seed_to_eps_and_eps_must_be_positive():
    zero, books = torch.zeros(1, 1, 1), Account(torch.zeros(1, 1))
    carried = Ratio().top(zero, zero, torch.zeros(1, 1), torch.zeros(1, 1))(torch.full((1, 1, 1), 2.0), books)
    assert (float(books.eps), float(carried.abs().sum())) == (2, 0)
    with pytest.raises(ValueError, match="needs eps > 0"):
        Ratio(eps=0.0)
