"""Our attention against torch's, with the same weights."""

import pytest
import torch
from torch import nn

from headgates.models import cpu_kernels
from headgates.models.attention import MultiHeadAttention
from tests.models.test_transformer import copy_attention
from tests.worlds.small_model import stirred

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
    ours = stirred(MultiHeadAttention(D, HEADS, WIDTH), 0.3)
    with torch.no_grad():
        copy_attention(theirs, ours)
    return ours, theirs


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def additive(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def test_outputs_and_gradients_with_padded_keys_equal_torch_s(ours_and_theirs, path):
    ours, theirs = ours_and_theirs
    x, memory = random(B, L, D), random(B, S, D)
    expected, _ = theirs(x, memory, memory, key_padding_mask=PADDING)
    found = ours(x, *ours.keys_values(memory), additive(PADDING)[:, None, None, :])
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    grads = torch.cat([projection.weight.grad for projection in (ours.q_proj, ours.k_proj, ours.v_proj)])
    torch.testing.assert_close(grads, theirs.in_proj_weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.out_proj.weight.grad, theirs.out_proj.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("queries", [1, L])
@pytest.mark.parametrize("keys", [1, 15, 16, 40])  # below and from the width of a vector on
@pytest.mark.parametrize("masked", [True, False])
def test_outputs_and_weights_equal_torch_s_at_any_number_of_queries_and_keys(
    ours_and_theirs, queries, keys, masked
):
    ours, theirs = ours_and_theirs
    x, memory, seen = random(B, queries, D), random(B, keys, D), []
    mask = torch.arange(keys).expand(B, -1) > keys // 2 if masked else None
    expected, weights = theirs(x, memory, memory, key_padding_mask=mask, average_attn_weights=False)
    given = (x, *ours.keys_values(memory), additive(mask)[:, None, None, :] if masked else None)
    torch.testing.assert_close(ours(*given), expected)
    ours.keep = seen.append
    torch.testing.assert_close(ours(*given), expected)
    torch.testing.assert_close(seen, [weights])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("heads", [5, 0])
def test_heads_times_width_need_not_be_the_model_width(path, heads):
    attention, x = MultiHeadAttention(d_model=13, heads=heads, head_width=3), random(B, L, 13)
    found = attention(x, *attention.keys_values(x))
    assert found.shape == (B, L, 13)
    assert heads or torch.equal(found, attention.out_proj.bias.expand(B, L, 13))  # W_O's bias is what is left


def test_dropout_of_weights_keeps_the_expected_output(path):
    torch.manual_seed(0)
    attention = MultiHeadAttention(D, HEADS, WIDTH, dropout=0.25).train()
    x = random(B, L, D)
    with torch.no_grad():
        keys_values = attention.keys_values(random(B, S, D))
        outputs = torch.stack([attention(x, *keys_values) for _ in range(499)])
        error = outputs.std(0) / len(outputs) ** 0.5
        difference = (outputs.mean(0) - attention.eval()(x, *keys_values)).abs()
    assert (outputs.std(0) > 0).all()
    assert float((difference / error).max()) < 5  # the largest of 330
