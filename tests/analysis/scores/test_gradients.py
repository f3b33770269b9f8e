"""Michel's importance and Fisher information against the slow way, one backward pass a sentence or
a query position; rearrangement against a search over all choices."""

import copy
import inspect
from itertools import combinations, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.gate_gradients import head_factors
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.scores.fisher import fisher, fisher_blocks, rearranged, swapped_mask
from headgates.analysis.scores.importance import importance, raw_importance
from headgates.analysis.scores.integrated import gradient
from headgates.data.batch import Batch
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite, attach, detach
from headgates.models.transformer import Transformer
from tests.worlds.one_by_one import assert_equal, in_batches, random_model, random_pairs

PAIRS = random_pairs()[:7]
BATCHES = in_batches(PAIRS, 3)


@pytest.fixture
def model() -> Transformer:
    return random_model()


def gradients(model: Transformer, batch: Batch, xi: dict[HeadSite, Tensor], leaves: list[Tensor]) -> tuple:
    """d loss / d leaves with the gates xi; the loss is the plain sum of -log p."""
    attach(model, gate="mask").assign(xi)
    logits, padding = model(batch.source, batch.target_in), SpecialTokens().padding
    loss = F.cross_entropy(
        logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=padding, reduction="sum"
    )
    detach(model)
    return torch.autograd.grad(loss, leaves)


def by_sentence(model: Transformer) -> dict[HeadSite, Tensor]:
    """(sentences, H): dL(x) / dxi of each sentence alone, with one (H,) xi a site."""
    xi = {site: torch.ones(site.heads, requires_grad=True) for site in sites_of(model, None)}
    rows = [gradients(model, batch, xi, list(xi.values())) for batch in in_batches(PAIRS, 1)]
    return {site: torch.stack(each).double() for site, each in zip(xi, zip(*rows, strict=True), strict=True)}


@pytest.mark.parametrize("size", [1, 3, len(PAIRS)])  # padding and neighbours do not count
def test_the_papers_score_is_the_mean_size_over_sentences_divided_by_each_layers_norm(model, size):
    batches = in_batches(PAIRS, size)
    for site, rows in by_sentence(model).items():
        sizes = [sum(abs(float(row[head])) for row in rows) / len(rows) for head in range(site.heads)]
        norm = sum(size**2 for size in sizes) ** 0.5
        expected = torch.tensor([size / norm for size in sizes], dtype=torch.float64)
        torch.testing.assert_close(importance(model, batches)[site], expected, rtol=1e-5, atol=1e-6)
        raw = torch.tensor(sizes, dtype=torch.float64)
        torch.testing.assert_close(raw_importance(model, batches)[site], raw, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, len(PAIRS)])
def test_of_batches_the_absolute_value_is_that_of_a_whole_batchs_gradient(model, size):
    sums = {s: sum(some.sum(0).abs() for some in rows.split(size)) for s, rows in by_sentence(model).items()}
    loop = HeadMap({site: total / len(PAIRS) for site, total in sums.items()})
    assert_equal(raw_importance(model, in_batches(PAIRS, size), absolute="batch"), loop)
    assert_equal(importance(model, in_batches(PAIRS, size), absolute="batch"), loop.l2_per_layer())


def test_of_tokens_it_is_that_of_one_backward_pass_for_each_query_position(model):
    totals = {site: torch.zeros(site.heads) for site in sites_of(model, None)}
    counts = dict.fromkeys(totals, 0)
    for batch, site in product(in_batches(PAIRS[:3], 1), totals):
        length = (batch.source if site.kind == "enc-self" else batch.target_in).shape[1]
        for position in range(length):
            leaf = torch.ones(site.heads, requires_grad=True)
            here = torch.where(torch.arange(length) == position, leaf[:, None], 1.0)[None]  # (1, H, L)
            totals[site] = totals[site] + gradients(model, batch, {site: here}, [leaf])[0].abs()
        counts[site] += length
    loop = HeadMap({site: totals[site].double() / counts[site] for site in totals})
    for size in (1, 3):  # with padding on both sides
        assert_equal(raw_importance(model, in_batches(PAIRS[:3], size), absolute="token"), loop)
    with pytest.raises(ValueError, match="unknown absolute 'tokens'; did you mean 'token'"):
        raw_importance(model, [], absolute="tokens")


@pytest.mark.parametrize("score", [importance, raw_importance, exact_effects])
def test_help_of_a_public_score_names_its_arguments(score):
    assert {"loss", "queries", "ranks"} < {*inspect.signature(score).parameters}


@pytest.mark.parametrize("absolute", ["sentence", "token", "batch"])
def test_closed_heads_score_zero_and_the_others_are_scored_with_them_closed(model, absolute):
    closed = HeadMap({site: torch.arange(site.heads) == 1 for site in sites_of(model, None)})
    some, every = (
        raw_importance(model, BATCHES, absolute=absolute, closed=each).flat() for each in (closed, None)
    )
    shut = closed.flat()
    assert (some[shut] == 0).all()
    assert (some[~shut] > 0).all()
    assert not torch.allclose(some[~shut], every[~shut], rtol=0.01)


def test_the_model_is_left_as_it_was_also_by_an_error_and_dropout_is_off(model):
    def broken():
        yield BATCHES[0]
        raise RuntimeError("the disk is gone")

    def state():
        flags = [each.requires_grad for each in model.parameters()]
        return [each.training for each in model.modules()], flags, copy.deepcopy(model.state_dict())

    expected = raw_importance(model, BATCHES)
    model.train().encoder.eval()
    model.source_embedding.requires_grad_(False)
    *before, weights = state()
    assert raw_importance(model, BATCHES) == expected
    with pytest.raises(RuntimeError, match="the disk is gone"):
        raw_importance(model, broken())
    for score in (raw_importance, gradient, exact_effects):
        with pytest.raises(ValueError, match="needs at least one batch of sentence pairs, got none"):
            score(model, [])
    assert getattr(model, "head_gates", None) is None
    assert [*state()[:2]] == before
    assert all(each.grad is None for each in model.parameters())
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)


@torch.no_grad()
def test_heads_that_nothing_depends_on_have_a_gradient_of_zero_and_values_without_one_are_refused(model):
    batch = BATCHES[0]
    with head_factors(model) as factors:
        factors.renew(batch, per="sentence")
        with torch.enable_grad():
            found = factors.gradients(model.encode(batch.source)[0].sum())
        assert all(row.any() == (site.kind == "enc-self") for site, row in found.items())
        assert all(row.shape == (len(batch), site.heads) for site, row in found.items())
        with pytest.raises(ValueError, match="no gradient reaches the heads"):
            factors.gradients(batch_loss(model, batch))


# --- Fisher information


@pytest.mark.parametrize("size", [1, 3])
def test_fisher_blocks_are_means_of_outer_products_of_one_gradient_for_each_sentence(model, size):
    found, blocks = (score(model, in_batches(PAIRS, size)) for score in (fisher, fisher_blocks))
    for site, rows in by_sentence(model).items():
        slow = sum(torch.outer(row, row) for row in rows) / len(PAIRS)
        torch.testing.assert_close(blocks[site], slow, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found[site], slow.diagonal(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_swaps_end_where_no_exchange_of_two_heads_helps_and_never_above_the_diagonals_choice(count):
    improved = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)  # gradients with much in common, so that cross terms count
        g = rng.normal(size=(101, 5)) + 2 * rng.normal(size=(101, 1)) * rng.normal(size=5)
        block = g.T @ g / 101
        cost = {some: block[np.ix_(some, some)].sum() for some in combinations(range(5), count)}
        lowest = sorted(block.diagonal().argsort()[:count].tolist())
        before = torch.tensor([head in lowest for head in range(5)])
        after = tuple(swapped_mask(before, torch.tensor(block)).nonzero().flatten().tolist())
        assert all(cost[some] >= cost[after] - 1e-9 for some in cost if len({*some} - {*after}) == 1)
        if count in (1, 4):  # every choice is one exchange away
            assert cost[after] == pytest.approx(min(cost.values()))
        improved += cost[after] < cost[tuple(lowest)] - 1e-9
    assert count != 2 or improved > 7  # else little was tried


def test_rearranged_swaps_within_every_site(model):
    closed, blocks = fisher(model, BATCHES).lowest(5), fisher_blocks(model, BATCHES)
    found = rearranged(model, BATCHES, closed)
    assert found == HeadMap({site: swapped_mask(row, blocks[site]) for site, row in closed.items()})
    assert rearranged(model, BATCHES, closed.select(["cross"])) == found.select(["cross"])
