"""Our attention against torch's, with the same weights."""

import pytest
import torch
from torch import nn

from headgates.models import cpu_kernels
from headgates.models.attention import MultiHeadAttention

B, L, S, HEADS, WIDTH = 2, 5, 7, 3, 11
D = HEADS * WIDTH
PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])  # (B, S): keys not to be seen


@pytest.fixture(params=["written out", "fused"])
def path(request, monkeypatch):
    """Both ways to compute the same attention."""
    monkeypatch.setattr(cpu_kernels, "LONGEST", 512 if request.param == "written out" else 0)
    return request.param


@pytest.fixture
def ours_and_theirs():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D, HEADS, batch_first=True).eval()
    ours = MultiHeadAttention(D, HEADS, WIDTH).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
        for projection, weight, bias in zip(
            (ours.q_proj, ours.k_proj, ours.v_proj),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
            strict=True,
        ):
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    return ours, theirs


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, L, D, generator=generator), torch.randn(B, S, D, generator=generator)


def additive(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def test_the_output_with_padded_keys_equals_torch_s(ours_and_theirs, inputs, path):
    ours, theirs = ours_and_theirs
    x, memory = inputs
    expected, _ = theirs(x, memory, memory, key_padding_mask=PADDING)
    torch.testing.assert_close(
        ours(x, *ours.keys_values(memory), additive(PADDING)[:, None, None, :])[0], expected
    )


def test_the_output_of_causal_attention_equals_torch_s(ours_and_theirs, inputs, path):
    ours, theirs = ours_and_theirs
    x, _ = inputs
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=later)
    torch.testing.assert_close(ours(x, *ours.keys_values(x), additive(later))[0], expected)


@pytest.mark.parametrize("keys", [1, 7, 15, 16, 17, 40])
@pytest.mark.parametrize("masked", [True, False])
def test_a_single_query_gets_what_torch_gives_it(ours_and_theirs, keys, masked):
    ours, theirs = ours_and_theirs
    x, memory = (
        torch.randn(B, length, D, generator=torch.Generator().manual_seed(keys)) for length in (1, keys)
    )
    mask = torch.arange(keys).expand(B, -1) > keys // 2 if masked else None
    expected, weights = theirs(x, memory, memory, key_padding_mask=mask, average_attn_weights=False)
    bias = additive(mask)[:, None, None, :] if masked else None
    found, seen = ours(x, *ours.keys_values(memory), bias, need_weights=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(seen, weights)


def test_the_weights_of_every_head_equal_torch_s(ours_and_theirs, inputs):
    ours, theirs = ours_and_theirs
    x, memory = inputs
    _, expected = theirs(x, memory, memory, key_padding_mask=PADDING, average_attn_weights=False)
    _, weights = ours(x, *ours.keys_values(memory), additive(PADDING)[:, None, None, :], need_weights=True)
    torch.testing.assert_close(weights, expected)


def test_the_gradients_equal_torch_s(ours_and_theirs, inputs, path):
    ours, theirs = ours_and_theirs
    x, memory = inputs
    ours(x, *ours.keys_values(memory))[0].square().sum().backward()
    theirs(x, memory, memory)[0].square().sum().backward()
    grads = torch.cat([projection.weight.grad for projection in (ours.q_proj, ours.k_proj, ours.v_proj)])
    torch.testing.assert_close(grads, theirs.in_proj_weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.out_proj.weight.grad, theirs.out_proj.weight.grad, rtol=1e-4, atol=1e-4)


def test_heads_times_width_need_not_be_the_model_width(path):
    attention = MultiHeadAttention(d_model=13, heads=5, head_width=3)
    x = torch.randn(B, L, 13, generator=torch.Generator().manual_seed(0))
    assert attention(x, *attention.keys_values(x))[0].shape == (B, L, 13)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_without_heads_only_the_bias_of_W_O_comes_out(path):
    attention = MultiHeadAttention(d_model=13, heads=0, head_width=3)
    x = torch.randn(B, L, 13, generator=torch.Generator().manual_seed(0))
    assert torch.equal(attention(x, *attention.keys_values(x))[0], attention.out_proj.bias.expand(B, L, 13))


def test_dropout_of_weights_keeps_the_expected_output(path, inputs):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, HEADS, WIDTH, dropout=0.25).train()
    x, memory = inputs
    with torch.no_grad():
        keys_values = attention.keys_values(memory)
        outputs = torch.stack([attention(x, *keys_values)[0] for _ in range(997)])
        error = outputs.std(0) / len(outputs) ** 0.5
        difference = (outputs.mean(0) - attention.eval()(x, *keys_values)[0]).abs()
    assert (outputs.std(0) > 0).all()
    assert float((difference / error).max()) < 5  # the largest of 330
