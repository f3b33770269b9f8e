"""The loss without logits against torch's own cross-entropy on the whole logits."""

import pytest
import torch
import torch.nn.functional as F

from headgates.data.special_tokens import SpecialTokens
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


def reference(hidden, weight, targets, smoothing):
    logits = (hidden @ weight.T).flatten(0, 1)
    return F.cross_entropy(
        logits, targets.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_is_the_cross_entropy_of_the_tokens_that_are_not_padding(smoothing):
    hidden, weight, targets = case()
    torch.testing.assert_close(
        linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=smoothing),
        reference(hidden, weight, targets, smoothing),
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_its_gradients_are_those_of_the_cross_entropy(smoothing):
    inputs = case()
    ours = torch.autograd.grad(
        linear_cross_entropy(*inputs, padding=PAD, smoothing=smoothing) / 11, inputs[:2]
    )
    theirs = torch.autograd.grad(reference(*inputs, smoothing) / 11, inputs[:2])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("learned", [True, False])
def test_a_bias_of_the_projection_counts_and_gets_its_gradient_if_it_learns(learned):
    hidden, weight, targets = case()
    bias = torch.randn(V, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_(
        learned
    )
    logits = F.linear(hidden, weight, bias).flatten(0, 1)
    theirs = F.cross_entropy(
        logits, targets.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    ours = linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=0.1, bias=bias)
    torch.testing.assert_close(ours, theirs)
    inputs = (hidden, weight, bias) if learned else (hidden, weight)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


@pytest.mark.parametrize("tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_chunks_leave_no_seam(tokens):
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(1, tokens, D, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(1, V, (1, tokens), generator=generator)
    ours, theirs = (
        linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=0.1),
        reference(hidden, weight, targets, 0.1),
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (hidden, weight)), torch.autograd.grad(theirs, (hidden, weight))
    )


def test_a_frozen_weight_gets_no_gradient_and_the_states_still_do():
    hidden, weight, targets = case()
    weight.requires_grad_(False)
    linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=0.1).backward()
    assert weight.grad is None
    torch.testing.assert_close(
        hidden.grad, torch.autograd.grad(reference(hidden, weight, targets, 0.1), hidden)[0]
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


def test_bfloat16_autocast_agrees_to_its_own_precision():
    hidden, weight, targets = case(101, dtype=torch.float32)
    exact = reference(hidden, weight, targets, 0.1)
    exact_grads = torch.autograd.grad(exact, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, padding=PAD, smoothing=0.1)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss.dtype == torch.float32
    assert abs(loss.item() / exact.item() - 1) < 0.01
    for ours, theirs in zip(grads, exact_grads, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm() / theirs.norm()) < 0.01  # bf16 keeps 8 bits
