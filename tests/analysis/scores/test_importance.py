"""Michel's importance against the slow way: one backward pass a sentence, or one a position."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.analysis.scores.importance import importance
from headgates.configs.schema import ModelConfig
from headgates.data.batch import Batch, collate
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite, attach, detach, find_sites
from headgates.models.transformer import Transformer

PAD = SpecialTokens().padding

V, HEADS = 31, 3
Pair = tuple[list[int], list[int]]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=12,
        ffn=23,
        heads=HEADS,
        encoder_layers=2,
        decoder_layers=1,
        dropout=0.3,
        attention_dropout=0.2,
    )
    model = Transformer(config, V, V).eval()
    for parameter in model.parameters():  # away from the soft start, where all heads matter about equally
        parameter.data.mul_(2)
    return model


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    generator = torch.Generator().manual_seed(1)

    def ids(length: int) -> list[int]:
        return torch.randint(4, V, (length,), generator=generator).tolist()

    return [(ids(s), ids(t)) for s, t in [(2, 5), (7, 3), (3, 3), (11, 1), (1, 7), (5, 5), (4, 2)]]


def batches(pairs: list[Pair], size: int) -> list[Batch]:
    return [
        collate(pairs[i : i + size], list(range(i, min(i + size, len(pairs)))), 1)
        for i in range(0, len(pairs), size)
    ]


def gradients(
    model: Transformer, batch: Batch, xi: dict[HeadSite, Tensor], leaves: list[Tensor]
) -> list[Tensor]:
    """d loss / d leaves with the gates xi; the loss is the plain sum of -log p."""
    bank = attach(model, gate="mask")
    bank.assign(xi)
    logits = model(batch.source, batch.target_in)
    loss = F.cross_entropy(
        logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum"
    )
    found = list(torch.autograd.grad(loss, leaves))
    detach(model)
    return found


def signed(model: Transformer, pair: Pair, closed: HeadMap | None = None) -> dict[HeadSite, Tensor]:
    """dL(x) / dxi of one sentence alone, with one (H,) xi a site."""
    xi = {
        site: torch.ones(HEADS) if closed is None else (~closed[site]).float() for site in find_sites(model)
    }
    for row in xi.values():
        row.requires_grad_(True)
    return dict(zip(xi, gradients(model, collate([pair], [0], 1), xi, list(xi.values())), strict=True))


def assert_equal(ours: HeadMap, loop: HeadMap) -> None:
    assert list(ours) == list(loop)
    for site in loop:
        torch.testing.assert_close(ours[site], loop[site], rtol=1e-4, atol=1e-6)


def mean_of_absolute(model: Transformer, pairs: list[Pair], closed: HeadMap | None = None) -> HeadMap:
    rows = [signed(model, pair, closed) for pair in pairs]
    return HeadMap(
        {site: torch.stack([row[site].abs() for row in rows]).double().mean(0) for site in rows[0]}
    )


def test_sentence_form_equals_one_backward_per_sentence(model, pairs):
    assert_equal(importance(model, batches(pairs, len(pairs))), mean_of_absolute(model, pairs))


@pytest.mark.parametrize("absolute", ["sentence", "token"])
def test_sentence_and_token_forms_depend_on_neither_batch_size_nor_neighbours(model, pairs, absolute):
    whole = importance(model, batches(pairs, len(pairs)), absolute=absolute)
    assert_equal(importance(model, batches(pairs, 1), absolute=absolute), whole)
    assert_equal(importance(model, batches(pairs[::-1], 3), absolute=absolute), whole)


def test_token_form_equals_one_backward_per_query_position(model, pairs):
    totals: dict[HeadSite, Tensor] = {site: torch.zeros(HEADS) for site in find_sites(model)}
    counts = dict.fromkeys(totals, 0)
    for pair in pairs[:3]:
        batch = collate([pair], [0], 1)
        for site in totals:
            length = (batch.source if site.kind == "enc-self" else batch.target_in).shape[1]
            for position in range(length):
                xi = torch.ones(HEADS, length)
                leaf = torch.ones(HEADS, requires_grad=True)
                here = torch.cat([xi[:, :position], leaf[:, None], xi[:, position + 1 :]], dim=1)[
                    None
                ]  # (1, H, L)
                totals[site] = totals[site] + gradients(model, batch, {site: here}, [leaf])[0].abs()
            counts[site] += length
    loop = HeadMap({site: totals[site].double() / counts[site] for site in totals})
    assert_equal(
        importance(model, batches(pairs[:3], 3), absolute="token"), loop
    )  # with padding on both sides


def test_batch_form_is_the_absolute_value_of_the_batch_sum_over_the_number_of_sentences(model, pairs):
    totals = {site: torch.zeros(HEADS) for site in find_sites(model)}
    for start in range(0, len(pairs), 3):
        rows = [signed(model, pair) for pair in pairs[start : start + 3]]
        for site in totals:
            totals[site] += torch.stack([row[site] for row in rows]).sum(0).abs()
    loop = HeadMap({site: total.double() / len(pairs) for site, total in totals.items()})
    assert_equal(importance(model, batches(pairs, 3), absolute="batch"), loop)


@pytest.mark.parametrize("absolute", ["sentence", "token", "batch"])
def test_closed_heads_score_zero_and_the_others_are_scored_with_them_shut(model, pairs, absolute):
    closed = HeadMap({site: torch.arange(HEADS) == 1 for site in find_sites(model)})
    scores = importance(model, batches(pairs, 3), absolute=absolute, closed=closed)
    assert (scores.flat()[closed.flat()] == 0).all()
    assert (scores.flat()[~closed.flat()] > 0).all()
    open_scores = importance(model, batches(pairs, 3), absolute=absolute)
    assert not torch.allclose(scores.flat()[~closed.flat()], open_scores.flat()[~closed.flat()], rtol=0.01)


def test_only_the_kinds_asked_for_are_scored_and_score_as_among_all(model, pairs):
    every = importance(model, batches(pairs, 3))
    some = importance(model, batches(pairs, 3), kinds=["cross", "enc-self"])
    assert {site.kind for site in some} == {"cross", "enc-self"}
    assert_equal(some, every.select(["cross", "enc-self"]))


def test_dropout_is_off_even_for_a_model_in_training(model, pairs):
    expected = importance(model, batches(pairs, 3))
    assert_equal(importance(model.train(), batches(pairs, 3)), expected)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(model, pairs, training):
    model.train(training)
    model.source_embedding.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    importance(model, batches(pairs, 3))
    assert model.training is training
    assert all(module.training is training for module in model.modules())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("batch_list", [[], iter(())])
def test_no_batch_is_refused_and_leaves_the_model_as_it_was(model, batch_list):
    model.train()
    with pytest.raises(ValueError, match="importance needs at least one batch of sentence pairs, got none"):
        importance(model, batch_list)
    assert model.training
    assert getattr(model, "head_gates", None) is None
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_error_half_way_leaves_the_model_as_it_was(model, pairs):
    def broken():
        yield from batches(pairs, 3)[:1]
        raise RuntimeError("the disk is gone")

    model.train()
    with pytest.raises(RuntimeError, match="the disk is gone"):
        importance(model, broken())
    assert model.training
    assert getattr(model, "head_gates", None) is None
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_model_with_gates_is_refused_and_left_as_it_was(model, pairs):
    bank = attach(model.train(), gate="l0")
    with pytest.raises(ValueError, match="already has gates"):
        importance(model, batches(pairs, 3))
    assert model.training
    assert bank.training
    assert all(parameter.requires_grad for parameter in model.parameters())
