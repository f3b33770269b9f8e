"""The training loss without the logits: output projection, softmax, label-smoothed cross-entropy and their
gradients, chunk by chunk.

On a small translation model the (tokens, V) logits and what is done to them cost more than all layers
together. Here each chunk of tokens is projected, turned into its gradient and forgotten, so the logits never
exist as a whole and padding is never projected. Letters: N tokens, D model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 64  # a chunk in bf16 has a multiple of so many rows, since each new number of them costs
CHUNK = 512  # tokens at least; at V = 8,000 a chunk's logits take 16 MB in fp32, as do their probabilities
# in bf16 each chunk's gradient (V, D) is added to one in fp32: a wide model takes few chunks of 32 MB
WIDE, WIDE_CHUNK_LOGITS = 256, 2**24


class _LinearCrossEntropy(torch.autograd.Function):
    """sum_n [(1 - e) (lse_n - logit_n,y) + e (lse_n - mean_v logit_n,v)], logits = h W^T + b; d/dlogits =
    softmax - (1 - e) onehot - e / V.

    Of the gradient with respect to the logits only the softmax is made, in the type of the products. What the
    label and the smoothing add to the other gradients are single rows of W and h, and two means: they stay in
    the type of the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        wanted: tuple[bool, bool, bool],
    ) -> Tensor:
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        h, w, b = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        share = 1 - smoothing
        total = torch.zeros((), dtype=kind, device=hidden.device)
        shapes = (hidden, weight, torch.empty(0) if bias is None else bias)
        grad_h, grad_w, grad_b = (
            torch.zeros_like(x, dtype=kind) if want else None for x, want in zip(shapes, wanted, strict=True)
        )
        chunk = CHUNK
        if dtype == torch.bfloat16 and weight.shape[1] >= WIDE:
            chunk = max(chunk, WIDE_CHUNK_LOGITS // len(weight) // ROWS * ROWS)
        for begin in range(0, len(h), chunk):
            part, y = slice(begin, begin + chunk), targets[begin : begin + chunk]
            z = h[part]  # (n, D)
            if dtype == torch.bfloat16:  # with rows of zeros, which add nothing
                z = F.pad(z, (0, 0, 0, -len(z) % ROWS))
            logits = F.linear(z, w, b)  # (n, V), or some rows more
            p = torch.softmax(logits, 1)
            # the largest probability is 1 / sum exp(logit - top)
            lse = logits.amax(1).to(kind) - p.amax(1).to(kind).log()
            total += (lse[: len(y)] - share * logits[: len(y)].gather(1, y[:, None])[:, 0]).sum()
            if grad_h is not None:
                grad_h[part] = (p @ w)[: len(y)]
            if grad_w is not None:
                grad_w += p.T @ z
            if grad_b is not None:
                grad_b += p[: len(y)].sum(0, dtype=kind)
        even = smoothing / len(weight)
        mean_w = weight.mean(0)  # (D,)
        total -= smoothing * (hidden.to(kind) @ mean_w.to(kind)).sum()
        if bias is not None:
            total -= smoothing * len(hidden) * bias.mean()
        if grad_h is not None:
            grad_h -= torch.add(smoothing * mean_w, weight[targets], alpha=share)
        if grad_w is not None:
            grad_w.index_add_(0, targets, hidden.to(kind), alpha=-share).sub_(even * hidden.sum(0))
        if grad_b is not None:
            grad_b.sub_(torch.bincount(targets, minlength=len(weight)).to(kind), alpha=share).sub_(
                even * len(hidden)
            )
        ctx.grads = (grad_h, grad_w, grad_b)  # not inputs or outputs, so plain attributes
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *(None if each is None else each * grads[0] for each in ctx.grads), None, None, None, None


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    padding: int,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Label-smoothed cross-entropy in nats, summed over the target tokens that are not padding: a scalar.

    hidden (B, T, D) decoder states, weight (V, D) and bias (V,) output projection, targets (B, T) ids. Equals
    F.cross_entropy(F.linear(hidden, weight, bias), ..., label_smoothing=smoothing, reduction="sum",
    ignore_index=padding). Under autocast logits and probabilities are in its type, all sums in fp32."""
    real = targets != padding
    h, y = hidden[real], targets[real]
    device = h.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype
    if device != "cpu":  # a GPU's own kernels are faster than a loop of small ones
        return F.cross_entropy(
            F.linear(h, weight, bias).float(), y, label_smoothing=smoothing, reduction="sum"
        )
    grad = torch.is_grad_enabled()
    wanted = (grad, grad and weight.requires_grad, grad and bias is not None and bias.requires_grad)
    with torch.autocast(device, enabled=False):
        result = _LinearCrossEntropy.apply(h, weight, bias, y, smoothing, dtype, wanted)
    assert isinstance(result, Tensor)
    return result
