"""The loss without logits against torch's own cross-entropy on the whole logits."""

import pytest
import torch
import torch.nn.functional as F

from headgates.data.special_tokens import SpecialTokens
from headgates.models import loss as loss_module
from headgates.models.loss import CHUNK, linear_cross_entropy

PAD = SpecialTokens().padding

D, V = 7, 31


def case(tokens: int = 13, *, dtype=torch.float64, seed: int = 0):
    """hidden (3, tokens, D), weight (V, D), targets (3, tokens) with padding at the ends of two rows."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(3, tokens, D, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(1, V, (3, tokens), generator=generator)
    targets[1, tokens // 2 :] = PAD
    targets[2, 1:] = PAD
    return hidden, weight, targets


def reference(hidden, weight, targets, smoothing, bias=None):
    logits = F.linear(hidden, weight, bias).flatten(0, 1)
    return F.cross_entropy(
        logits, targets.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("bias", ["none", "learned", "fixed"])
@pytest.mark.parametrize("tokens", [1, 13, CHUNK, CHUNK + 1])
def test_loss_and_gradients_are_those_of_the_whole_logits(smoothing, bias, tokens):
    hidden, weight, targets = case(tokens)
    b = None if bias == "none" else torch.linspace(-1, 1, V, dtype=torch.float64)
    inputs = [hidden, weight] if bias != "learned" else [hidden, weight, b.requires_grad_()]
    theirs = reference(hidden, weight, targets, smoothing, b)
    ours = linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=smoothing, bias=b)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours / 11, inputs), torch.autograd.grad(theirs / 11, inputs)
    )


def test_a_batch_of_padding_alone_costs_nothing():
    hidden, weight, targets = case()
    loss = linear_cross_entropy(hidden, weight, torch.full_like(targets, PAD), padding=PAD, smoothing=0.1)
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_logits_far_beyond_the_range_of_exp_stay_finite():
    hidden, weight, targets = case(dtype=torch.float32)
    loss = linear_cross_entropy(hidden * 1000, weight, targets, padding=PAD, smoothing=0.1)
    assert torch.isfinite(loss)
    torch.testing.assert_close(loss, reference(hidden * 1000, weight, targets, 0.1))


@pytest.mark.parametrize("wide", [D, D + 1])
def test_bfloat16_autocast_agrees_to_its_own_precision(wide, monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK", 64)
    monkeypatch.setattr(loss_module, "WIDE", wide)
    monkeypatch.setattr(loss_module, "WIDE_CHUNK_LOGITS", 200 * V)  # a chunk of all rows
    padded, chunks = loss_module.F.pad, list[int]()
    monkeypatch.setattr(loss_module.F, "pad", lambda x, *how: chunks.append(len(x)) or padded(x, *how))
    hidden, weight, targets = case(101, dtype=torch.float32)  # 152 tokens: rows are added
    bias = torch.linspace(-1, 1, V).requires_grad_()
    inputs = (hidden, weight, bias)
    exact = reference(hidden, weight, targets, 0.1, bias)
    exact_grads = torch.autograd.grad(exact, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=0.1, bias=bias)
    grads = torch.autograd.grad(loss, inputs)
    assert len(chunks) == (1 if wide == D else 3)
    assert loss.dtype == torch.float32
    assert abs(loss.item() / exact.item() - 1) < 0.01
    for ours, theirs in zip(grads, exact_grads, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm() / theirs.norm()) < 0.01  # bf16 keeps 8 bits
