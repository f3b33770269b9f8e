"""Constant attention weights and norm scales, against the formulas with these detached by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.linear_pass import LinearPass

F64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


BOOL = random(2, 1, 3, 7) > 0.2
BOOL[1, :, 2] = False  # a query that sees nothing


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        (5, {}),
        (5, {"attn_mask": BOOL}),
        (5, {"attn_mask": random(5, 3, 7), "scale": 0.3}),
        (5, {"is_causal": True}),
        (1, {"enable_gqa": True}),
    ],
)
def test_fused_attention_gives_the_same_output_and_no_gradient_to_queries_and_keys(heads, options):
    q, k, v = random(2, 5, 3, 11), random(2, heads, 7, 11, seed=1), random(2, heads, 7, 11, seed=2)
    for each in (q, k, v):
        each.requires_grad_(True)
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with LinearPass() as linear_pass:
        found = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(found, expected)
    weight = random(*found.shape, seed=3)
    of_q, of_k, of_v = torch.autograd.grad(found, (q, k, v), weight, allow_unused=True)
    assert (of_q, of_k) == (None, None)
    torch.testing.assert_close(of_v, torch.autograd.grad(expected, v, weight)[0])  # the output is linear in v
    assert linear_pass.largest == found.numel()


@pytest.mark.parametrize(
    "module",
    [nn.LayerNorm(7, dtype=F64), nn.LayerNorm((3, 7), elementwise_affine=False), nn.RMSNorm(7, dtype=F64)],
)
def test_norms_give_the_same_output_and_are_linear_on_the_way_back(module):
    for parameter in module.parameters():
        parameter.data = random(*parameter.shape, seed=1)
    x = random(2, 3, 7).requires_grad_(True)
    expected = module(x)
    with LinearPass():
        found = module(x)
    torch.testing.assert_close(found, expected)
    last = tuple(range(-len(module.normalized_shape), 0))
    mean = 0 if isinstance(module, nn.RMSNorm) else x.mean(last, keepdim=True)
    sigma = (
        (x - mean)
        .pow(2)
        .mean(last, keepdim=True)
        .add(getattr(module, "eps", None) or torch.finfo(F64).eps)
        .sqrt()
        .detach()
    )
    by_hand = (x - mean) / sigma * (1 if module.weight is None else module.weight)
    weight = random(*found.shape, seed=2)
    torch.testing.assert_close(torch.autograd.grad(found, x, weight), torch.autograd.grad(by_hand, x, weight))


@pytest.mark.parametrize("softmax", [torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax])
def test_every_softmax_is_a_constant_and_what_else_there_is_keeps_its_gradient(softmax):
    x = random(2, 3).requires_grad_(True)
    with LinearPass():
        weights, rest = softmax(x, dim=-1), F.relu(x).sum()
    assert not weights.requires_grad
    torch.testing.assert_close(weights, torch.softmax(x, -1).detach())
    assert torch.equal(torch.autograd.grad(rest, x)[0], (x > 0).double())
    assert softmax(x, dim=-1).requires_grad  # outside


@pytest.mark.parametrize("activation", [F.gelu, F.silu, nn.GELU(approximate="tanh"), nn.SiLU()])
def test_an_activation_is_its_input_times_a_constant(activation):
    x = torch.cat([random(2, 3).flatten(), torch.tensor([0.0, -1e-9, 1e-9], dtype=F64)]).requires_grad_(True)
    with LinearPass():
        found = activation(x)
    torch.testing.assert_close(found, activation(x))
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope * x, found)
    torch.testing.assert_close(slope[-3:], torch.full((3,), 0.5, dtype=F64))


@pytest.mark.parametrize("sigmoid", [torch.sigmoid, Tensor.sigmoid, F.sigmoid, nn.Sigmoid()])
def test_a_gate_is_a_constant(sigmoid):
    x = random(2, 3).requires_grad_(True)
    with LinearPass():
        gate = sigmoid(x)
    assert not gate.requires_grad
    torch.testing.assert_close(gate, 1 / (1 + (-x.detach()).exp()))


@pytest.mark.parametrize("need_weights", [True, False])
def test_torchs_own_attention_module_is_linear_in_its_values(need_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(10, 5, batch_first=True, dtype=F64).eval().requires_grad_(False)
    q, k, v = (random(2, 3, 10, seed=i).requires_grad_(True) for i in range(3))
    expected, _ = module(q, k, v, need_weights=False)
    with LinearPass():
        found, _ = module(q, k, v, need_weights=need_weights)
    torch.testing.assert_close(found, expected)
    weight = random(*found.shape, seed=3)
    assert torch.autograd.grad(found, (q, k), weight, allow_unused=True, retain_graph=True) == (None, None)
    torch.testing.assert_close(
        torch.autograd.grad(found, v, weight), torch.autograd.grad(expected, v, weight)
    )


def test_torchs_own_layer_does_not_go_its_fused_way():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(10, 5, 7, batch_first=True, dtype=F64).eval().requires_grad_(False)
    x = random(2, 3, 10).requires_grad_(True)
    with LinearPass():
        found = layer(x)
    torch.testing.assert_close(found, layer(x))
    gradient = torch.autograd.grad(found[0, 0, 0], x)[0]
    whole = torch.autograd.grad(layer(x)[0, 0, 0], x)[0]
    assert not torch.allclose(gradient, whole)
