"""Constant attention weights and norm scales, against the formulas with these detached by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.linear_pass import LinearPass

F64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def gradients(output: Tensor, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    weight = random(*output.shape, seed=9)
    return torch.autograd.grad(output, inputs, weight, allow_unused=True, retain_graph=True)


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
    shapes = (2, 5, 3, 11), (2, heads, 7, 11), (2, heads, 7, 13)
    qkv = [random(*shape, seed=i).requires_grad_(True) for i, shape in enumerate(shapes)]
    expected = F.scaled_dot_product_attention(*qkv, **options)
    with LinearPass() as linear_pass:
        found = F.scaled_dot_product_attention(*qkv, **options)
    torch.testing.assert_close(found, expected)
    *nothing, of_v = gradients(found, qkv)
    assert nothing == [None, None]
    torch.testing.assert_close(of_v, gradients(expected, qkv)[2])  # the output is linear in v
    assert linear_pass.largest == found.numel()


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
@pytest.mark.parametrize("norm", [torch.layer_norm, F.layer_norm, torch.rms_norm, F.rms_norm])
def test_norms_give_the_same_output_and_are_linear_on_the_way_back(norm, shape):
    x, weight = random(2, 3, 7).requires_grad_(True), random(*shape, seed=1)
    with LinearPass():
        found = norm(x, shape, weight)
    torch.testing.assert_close(found, norm(x, shape, weight))
    last, of_layer = (-1, -2)[: len(shape)], "layer" in norm.__name__
    centred = x - x.mean(last, keepdim=True) if of_layer else x
    eps = 1e-5 if of_layer else torch.finfo(F64).eps
    sigma = (centred.pow(2).mean(last, keepdim=True) + eps).sqrt().detach()
    torch.testing.assert_close(gradients(found, [x]), gradients(centred / sigma * weight, [x]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        nn.Softmax(-1),
        nn.Sigmoid(),
        lambda x: torch.rsqrt(x**2 + 1),
        lambda x: x.var(-1),
    ],
    ids=["softmax", "module", "sigmoid", "rsqrt", "var"],
)
def test_weights_gates_and_scales_are_constants_and_what_else_there_is_keeps_its_gradient(function):
    x = random(2, 3).requires_grad_(True)
    with LinearPass():
        found, rest = function(x), F.relu(x).sum()
    assert not found.requires_grad
    outside = function(x)
    assert outside.requires_grad
    torch.testing.assert_close(found, outside.detach())
    assert torch.equal(torch.autograd.grad(rest, x)[0], (x > 0).double())


@pytest.mark.parametrize("activation", [F.gelu, F.silu, nn.GELU(approximate="tanh"), nn.SiLU()])
def test_an_activation_is_its_input_times_a_constant(activation):
    x = torch.cat([random(2, 3).flatten(), torch.tensor([0.0, -1e-9, 1e-9], dtype=F64)]).requires_grad_(True)
    with LinearPass():
        found = activation(x)
    torch.testing.assert_close(found, activation(x))
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope * x, found)
    torch.testing.assert_close(slope[-3:], torch.full((3,), 0.5, dtype=F64))


def written_gelu(x: Tensor) -> Tensor:
    """As models write it out, GPT-2's and T5's among them."""
    return 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))


def test_a_gelu_that_is_written_out_is_that_of_torch_also_as_a_gate():
    x, other = (random(3, 4, seed=i).requires_grad_(True) for i in range(2))
    for function in (lambda f: f(x), lambda f: f(x) * other):
        found = []
        for activation in (nn.GELU(approximate="tanh"), written_gelu):
            with LinearPass():
                y = function(activation)
            found.append([y, *gradients(y, [x, other])])
        for one, two in zip(*found, strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                torch.testing.assert_close(one, two)
    assert found[1][1] is None, "a gate is a constant"


def test_a_tanh_alone_is_its_input_times_a_constant():
    x = torch.cat([random(5), torch.zeros(1, dtype=F64)]).requires_grad_(True)
    with LinearPass():
        y = torch.tanh(x)
    torch.testing.assert_close(y, x.tanh())
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope * x, y)
    assert slope[-1] == 1


@pytest.mark.parametrize("need_weights", [True, False])
def test_torchs_own_attention_module_is_linear_in_its_values(need_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(10, 5, batch_first=True, dtype=F64).eval().requires_grad_(False)
    qkv = [random(2, 3, 10, seed=i).requires_grad_(True) for i in range(3)]
    expected, _ = module(*qkv, need_weights=False)
    with LinearPass():
        found, _ = module(*qkv, need_weights=need_weights)
    torch.testing.assert_close(found, expected)
    *nothing, of_v = gradients(found, qkv)
    assert nothing == [None, None]
    torch.testing.assert_close(of_v, gradients(expected, qkv)[2])


def test_torchs_own_layer_does_not_go_its_fused_way():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(10, 5, 7, batch_first=True, dtype=F64).eval().requires_grad_(False)
    x = random(2, 3, 10).requires_grad_(True)
    expected = layer(x)
    with LinearPass():
        found = layer(x)
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(gradients(found, [x])[0], gradients(expected, [x])[0])
