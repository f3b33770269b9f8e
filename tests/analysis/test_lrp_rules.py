"""LRP's rules on numbers worked out by hand: single steps, and a whole encoder-decoder of width 2."""

import math

import pytest
import torch
from torch import Tensor, nn

from headgates.analysis.lrp import relevance
from headgates.analysis.lrp_alpha_beta import AlphaBeta
from headgates.analysis.lrp_rules import Account, Gradient, Ratio
from headgates.configs.schema import ModelConfig
from headgates.data.batch import Batch, collate
from headgates.models.transformer import Transformer

ROW = (1, 1, 1)  # one row of seeds, one sentence, one position


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def account() -> Account:
    return Account(torch.ones(1, 1))


def close(found: Tensor, *numbers: float) -> None:
    torch.testing.assert_close(found.flatten(), tensor(*numbers))


X, WEIGHT, BIAS = tensor(1, 2), tensor(1, 1, 2, -1).view(2, 2), tensor(1, 0)
Y = tensor(4, 0)  # 1 + 2 + 1, and 2 - 2


def test_ratio_of_a_projection_books_bias_and_eps_and_a_sum_of_zero_counts_as_positive():
    # y + eps sign(y) = 5 and 1, so R = (5, 3) is 1 and 3 for every unit of a term: 1 1 + 3 2 and 1 2 - 3 2;
    # bias 1 1; eps 1 1 + 3 1
    books = account()
    back = Ratio(eps=1.0).linear(X.view(1, 1, 2), WEIGHT, BIAS, Y.view(1, 1, 2))
    close(back(tensor(5, 3).view(*ROW, 2), books), 7, -4)
    assert (float(books.biases), float(books.eps)) == (1, 4)


def test_alpha_beta_of_a_projection_shares_each_sign_by_itself():
    # first output: 1, 2 and the bias 1, all positive, share 5; second: 2 and -2 have half of 3 each
    books = account()
    back = AlphaBeta().linear(X.view(1, 1, 2), WEIGHT, BIAS, Y.view(1, 1, 2))
    close(back(tensor(5, 3).view(*ROW, 2), books), 1.25 + 1.5, 2.5 + 1.5)
    assert (float(books.biases), float(books.eps)) == (1.25, 0)


def test_alpha_beta_takes_other_parts_than_halves():
    back = AlphaBeta(alpha=0.75).linear(X.view(1, 1, 2), WEIGHT, BIAS, Y.view(1, 1, 2))
    close(back(tensor(5, 3).view(*ROW, 2), account()), 1.25 + 0.75 * 3, 2.5 + 0.25 * 3)


def test_gradient_of_a_projection_is_the_transposed_weight_and_books_the_bias():
    books = account()
    back = Gradient().linear(X.view(1, 1, 2), WEIGHT, BIAS, Y.view(1, 1, 2))
    close(back(tensor(5, 3).view(*ROW, 2), books), 11, 2)
    assert (float(books.biases), float(books.eps)) == (5, 0)


@pytest.mark.parametrize(("rule", "expected"), [(Ratio(eps=1e-12), (6, -2)), (AlphaBeta(), (2, 2))])
def test_attention_shares_by_weighted_values(rule, expected):
    weights, v = tensor(0.5, 0.5).view(1, 1, 1, 2), tensor(3, -1).view(1, 1, 2, 1)
    close(rule.mix(weights, v, weights @ v)(tensor(4).view(1, 1, 1, 1, 1), account()), *expected)


@pytest.mark.parametrize(
    ("rule", "expected"), [(Ratio(eps=1e-12), (6, -2)), (AlphaBeta(), (2, 2)), (Gradient(), (4, 4))]
)
def test_a_residual_connection_shares_in_proportion_to_the_two(rule, expected):
    first, second = rule.add(tensor(3).view(1, 1, 1), tensor(-1).view(1, 1, 1))(
        tensor(4).view(*ROW, 1), account()
    )
    close(torch.cat([first, second]), *expected)


def test_alpha_beta_books_the_relevance_of_a_sum_without_terms():
    books = account()
    zero = tensor(0).view(1, 1, 1)
    first, second = AlphaBeta().add(zero, zero)(tensor(4).view(*ROW, 1), books)
    assert (float(first), float(second), float(books.eps)) == (0, 0, 4)


@torch.no_grad()
@pytest.mark.parametrize("rule", [Ratio(eps=1e-12), Gradient()])
def test_a_layer_norm_is_linear_at_its_standard_deviation(rule):
    # x = (7, 1, 1): mean 3, sigma = sqrt(24 / 3); y_o = gamma_o / sigma (x_o - mean) + beta_o; relevance of
    # the first output alone
    module = nn.LayerNorm(3, eps=0.0)
    module.weight.data, module.bias.data = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 0.0])
    x, sigma, books = tensor(7, 1, 1).view(1, 1, 3), math.sqrt(8), account()
    y = module.double()(x)
    first = 2 / sigma * 4 + 1
    carried = tensor(1, 0, 0).view(*ROW, 3) * (
        first if isinstance(rule, Ratio) else 1
    )  # relevance of y_1, or its gradient
    found = rule.relevance(rule.norm(module, x, y)(carried, books), x)
    close(found, 2 / sigma * 7 * 2 / 3, -2 / sigma / 3, -2 / sigma / 3)
    assert float(books.biases) == pytest.approx(1)
    assert float(found.sum() + books.biases) == pytest.approx(first)


@pytest.mark.parametrize("rule", [AlphaBeta()])
def test_an_identity_norm_hands_relevance_on(rule):
    R = torch.randn(2, 3, 5, 7)
    assert torch.equal(
        rule.norm(nn.LayerNorm(7), torch.randn(3, 5, 7), torch.randn(3, 5, 7))(R, account()), R
    )


@pytest.mark.parametrize("rule", [Ratio(eps=1e-12), AlphaBeta(), Gradient()])
def test_the_top_logit_shares_by_its_terms(rule):
    x, weight = tensor(1, 2).view(1, 1, 2), tensor(3, 1).view(1, 1, 2)
    carried = rule.top(x, weight, torch.zeros(1, 1), tensor(5).view(1, 1))(tensor(2).view(*ROW), account())
    close(rule.relevance(carried, x), 6 / 5, 4 / 5)


@pytest.mark.parametrize("rule", [Ratio(eps=1e-12), AlphaBeta(), Gradient()])
def test_the_bias_of_the_top_logit_keeps_its_part(rule):
    x, weight, books = tensor(1, 2).view(1, 1, 2), tensor(3, 1).view(1, 1, 2), account()
    carried = rule.top(x, weight, tensor(3).view(1, 1), tensor(8).view(1, 1))(tensor(2).view(*ROW), books)
    close(rule.relevance(carried, x), 6 / 8, 4 / 8)
    assert float(books.biases) == pytest.approx(6 / 8)


@pytest.mark.parametrize("rule", [Gradient(), Ratio(), AlphaBeta()])
def test_a_logit_of_exactly_zero_loses_its_seed_to_eps(rule):
    books, zero = account(), torch.zeros(1, 1, 2)
    carried = rule.top(zero, zero, torch.zeros(1, 1), torch.zeros(1, 1))(tensor(2).view(*ROW), books)
    assert not carried.any()
    assert float(books.eps) == pytest.approx(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ratio(eps=0.0), "needs eps > 0, got 0.0; its limit at 0 is the rule 'gradient'"),
        (lambda: AlphaBeta(alpha=2.0), r"alpha in \[0, 1\] \(beta is 1 - alpha\), got 2.0"),
    ],
)
def test_numbers_that_a_rule_cannot_use_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.fixture
def tiny() -> tuple[Transformer, Batch]:
    """One source token, one target position, one layer each, width 2, two heads of width 1: attention has one
    key, so its weight is 1.

    Layer norms have no eps, so that of (a, b) is (1, -1) or (-1, 1) with sigma = |a - b| / 2. Values, from
    the bottom:
        source (3, 1), normed (1, -1), v = (2, -2) with the bias (0, -1), W_O gives (1, -6) + (0, 3): x = (4,
        -2) normed (1, -1), inner 1 + 1 + bias 1 = 3, outer (3, -3): x = (7, -5); memory = normed (1, -1)
        target (1, 3), self-attention gives 0; cross v = (1, -1), W_O gives (2, 1): x = (3, 4); feed-forward
        gives 0; normed (-1, 1) logit of the end of sentence: -2 (-1) + 3 1 = 5
    """
    config = ModelConfig(
        d_model=2,
        ffn=1,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        positions="learned",
        max_positions=2,
        embeddings="separate",
    )
    model = Transformer(config, source_vocab=3, target_vocab=3)
    for parameter in model.parameters():
        parameter.data.zero_()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.data.fill_(1)
            module.eps = 0.0
    model.double()
    set_to(model.source_embedding.weight[2], [3 / math.sqrt(2), 1 / math.sqrt(2)])
    set_to(model.target_embedding.weight[1], [1 / math.sqrt(2), 3 / math.sqrt(2)])
    set_to(model.output.weight[2], [-2, 3])
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    set_to(encoder.self_attention.v_proj.weight, [[2, 0], [0, 1]])
    set_to(encoder.self_attention.v_proj.bias, [0, -1])
    set_to(encoder.self_attention.out_proj.weight, [[1, 0.5], [-1, 2]])
    set_to(encoder.self_attention.out_proj.bias, [0, 3])
    set_to(encoder.feed_forward.inner.weight, [[1, -1]])
    set_to(encoder.feed_forward.inner.bias, [1])
    set_to(encoder.feed_forward.outer.weight, [[1], [-1]])
    set_to(decoder.cross_attention.v_proj.weight, [[1, 0], [0, 1]])
    set_to(decoder.cross_attention.out_proj.weight, [[1, -1], [2, 1]])
    return model.eval(), collate([([], [])], [0], 1)


def set_to(parameter: Tensor, values: list) -> None:
    parameter.data.copy_(torch.tensor(values, dtype=parameter.dtype))


@pytest.mark.parametrize("aggregation", ["step", "sum"])
@pytest.mark.parametrize("rule", [Gradient(), Ratio(eps=1e-12)])
def test_gradient_and_ratio_on_the_tiny_network(tiny, rule, aggregation):
    """Gradients of logit / 5: (-0.4, 0.6) above the last norm, (-1, 1) below (sigma 1/2), so (1, 2) at the
    cross heads (1, -1); (-1/12, 1/12) below the memory's norm (sigma 6); -1/6 at the inner unit, (-5/36,
    5/36) below its norm and residual (sigma 3); (-10/36, 7.5/36) at the heads (2, -2), (-18.75/36, 18.75/36)
    at the source (sigma 1,
    mean of (-20, 7.5) is
    -6.25)."""
    found = relevance(*as_arguments(tiny), rule=rule, aggregation=aggregation)
    close(found.signed["decoder.0.cross"], 1, -2)
    close(found.share["decoder.0.cross"], 1 / 3, 2 / 3)
    close(found.signed["encoder.0.enc-self"], -20 / 36, -15 / 36)
    close(found.share["encoder.0.enc-self"], 4 / 7, 3 / 7)
    close(found.share["decoder.0.dec-self"], 0, 0)
    assert found.ledger.target == pytest.approx(2)  # (1, 3) (-1, 1)
    assert found.ledger.source == pytest.approx(-37.5 / 36)
    assert found.ledger.biases == pytest.approx((3 * 5 - 7.5 - 6) / 36)  # W_O's, v's, inner
    assert found.ledger.seed == 1
    assert found.ledger.error < 1e-9


@pytest.mark.parametrize("aggregation", ["step", "sum"])
def test_alpha_beta_on_the_tiny_network(tiny, aggregation):
    """Down to the cross heads: logit terms 2 and 3, so (2/5, 3/5); residual (1 + 2, 3 + 1), so (4/15, 3/20)
    into W_O, whose terms are 1, 1 and 2, -1: halves twice, 5/24 for each head. Memory 5/24 each; residual (4
    + 3, -2 - 3), so 5/56 + 1/8 = 3/14 into the unit, a third each for its two terms and the bias; (4/21,
    13/84) above the residual (3 + 1, 1 - 3), so (1/21, 13/168) into W_O with terms 2, -1 and -2, -4, bias 3:
    (37, 50)/1008 and 39/1008;
    v_2 = -1 - 1 gives half
    of its 50/1008 to the
    bias."""
    found = relevance(*as_arguments(tiny), rule="alpha-beta", aggregation=aggregation)
    close(found.signed["decoder.0.cross"], 5 / 24, 5 / 24)
    close(found.share["decoder.0.cross"], 1 / 2, 1 / 2)
    close(found.signed["encoder.0.enc-self"], 37 / 1008, 50 / 1008)
    close(found.share["encoder.0.enc-self"], 37 / 87, 50 / 87)
    assert found.ledger.target == pytest.approx(2 / 15 + 9 / 20)
    assert found.ledger.source == pytest.approx(284 / 1008)
    assert found.ledger.biases == pytest.approx(1 / 14 + (39 + 25) / 1008)
    assert found.ledger.error < 1e-9


def as_arguments(tiny: tuple[Transformer, Batch]) -> tuple[Transformer, list[Batch]]:
    return tiny[0], [tiny[1]]
