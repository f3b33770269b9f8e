"""The training loss without the logits: output projection, softmax, label-smoothed cross-entropy and their gradients, chunk by chunk.

On a small translation model the (tokens, V) logits and what is done to them cost more than all layers together. Here each chunk of
tokens is projected, turned into its gradient while it is in the cache, and forgotten, so the logits never exist as a whole and padding
is never projected.   Letters: N tokens, D model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 256  # tokens; at V = 8,000 a chunk's logits take 8 MB in fp32: they stay in the cache


class _LinearCrossEntropy(torch.autograd.Function):
    """sum_n [(1 - e) (lse_n - logit_n,y) + e (lse_n - mean_v logit_n,v)], logits = h W^T; d/dlogits = softmax - (1 - e) onehot - e / V."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, dtype: torch.dtype, want_grad: bool, want_w: bool
    ) -> Tensor:
        h, w = hidden.to(dtype), weight.to(dtype)
        total = torch.zeros((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32, device=hidden.device)
        grad_h = torch.empty_like(hidden) if want_grad else None
        grad_w = torch.zeros_like(weight) if want_w else None
        # e / V times the sum over all v is the same for every token: two vectors instead of a pass over the logits
        mean_w = weight.to(total.dtype).mean(0)  # (D,)
        for begin in range(0, len(h), CHUNK):
            part, y = h[begin : begin + CHUNK], targets[begin : begin + CHUNK, None]
            logits = (part @ w.T).to(total.dtype)  # (n, V)
            right = logits.gather(1, y)
            top = logits.amax(1, keepdim=True)
            p = logits.sub_(top).exp_()
            norm = p.sum(1, keepdim=True)
            lse = top + norm.log()
            total += (lse - (1 - smoothing) * right).sum()
            if want_grad:
                p = p.mul_(norm.reciprocal()).to(dtype)
                p.scatter_add_(1, y, torch.full_like(y, -(1 - smoothing), dtype=dtype))
                assert grad_h is not None
                grad_h[begin : begin + CHUNK] = p @ w
                if grad_w is not None:
                    grad_w += p.T @ part
        if smoothing:
            total -= smoothing * (hidden.to(total.dtype) @ mean_w).sum()
            if grad_h is not None:
                grad_h -= (smoothing * mean_w).to(grad_h.dtype)
            if grad_w is not None:
                grad_w -= smoothing / len(weight) * hidden.sum(0).to(grad_w.dtype)
        ctx.grads = (grad_h, grad_w)  # not inputs or outputs, so plain attributes
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_h, grad_w = ctx.grads
        return grad_h * grads[0], None if grad_w is None else grad_w * grads[0], None, None, None, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, padding: int, smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Label-smoothed cross-entropy in nats, summed over the target tokens that are not padding: a scalar.

    hidden (B, T, D) decoder states, weight (V, D) and bias (V,) output projection, targets (B, T) ids. Equals
    F.cross_entropy(F.linear(hidden, weight, bias), ..., label_smoothing=smoothing, reduction="sum", ignore_index=padding). Under autocast
    the products run in its type, the softmax in fp32."""
    if bias is not None:  # as one more column, whose input is 1
        hidden, weight = F.pad(hidden, (0, 1), value=1.0), torch.cat([weight, bias[:, None]], dim=1)
    real = targets != padding
    h, y = hidden[real], targets[real]
    device = h.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype
    if device != "cpu":  # a GPU's own kernels are faster than a loop of small ones
        return F.cross_entropy(F.linear(h, weight).float(), y, label_smoothing=smoothing, reduction="sum")
    with torch.autocast(device, enabled=False):
        grad = torch.is_grad_enabled()
        result = _LinearCrossEntropy.apply(h, weight, y, smoothing, dtype, grad, grad and weight.requires_grad)
    assert isinstance(result, Tensor)
    return result
