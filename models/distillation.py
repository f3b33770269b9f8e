"""The training loss with a teacher, without the logits of either: as models/loss.py does, chunk by chunk.

(1 - w) label-smoothed cross-entropy + w T^2 KL(teacher || student), both softmaxes at temperature T (Hinton
et al. 2015, arXiv:1503.02531,
section 2), summed over target tokens.   Letters: N tokens, D model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.models.loss import CHUNK


class _DistilledCrossEntropy(torch.autograd.Function):
    """d/dlogits = (1 - w) (softmax(l) - (1 - e) onehot - e / V) + w T (softmax(l / T) - softmax(l_teacher /
    T))."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        teacher: tuple[Tensor, Tensor],
        targets: Tensor,
        numbers: tuple[float, float, float],
        dtype: torch.dtype,
    ) -> Tensor:
        smoothing, share, temperature = numbers
        h, w, dense, dense_w = (each.to(dtype) for each in (hidden, weight, *teacher))
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        total = torch.zeros((), dtype=kind, device=hidden.device)
        grad_h, grad_w = torch.empty_like(hidden), torch.zeros_like(weight)
        for begin in range(0, len(hidden), CHUNK):
            part, y = h[begin : begin + CHUNK], targets[begin : begin + CHUNK, None]
            logits = (part @ w.T).to(kind)  # (n, V)
            log_p = F.log_softmax(logits, 1)
            total -= (1 - share) * (
                (1 - smoothing) * log_p.gather(1, y).sum() + smoothing * log_p.mean(1).sum()
            )
            log_q = F.log_softmax((dense[begin : begin + CHUNK] @ dense_w.T).to(kind) / temperature, 1)
            log_s = log_p if temperature == 1 else F.log_softmax(logits / temperature, 1)
            q = log_q.exp()
            total += share * temperature**2 * (q * (log_q - log_s)).sum()
            p = log_p.exp()
            grad = share * temperature * ((p if temperature == 1 else log_s.exp()) - q)
            grad += (1 - share) * (p - smoothing / len(weight))
            grad.scatter_add_(1, y, torch.full_like(y, -(1 - share) * (1 - smoothing), dtype=kind))
            grad = grad.to(dtype)
            grad_h[begin : begin + CHUNK] = grad @ w
            grad_w += grad.T @ part
        ctx.grads = (grad_h, grad_w)  # not inputs or outputs, so plain attributes
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_h, grad_w = ctx.grads
        return grad_h * grads[0], grad_w * grads[0], None, None, None, None


def distilled_cross_entropy(
    student: tuple[Tensor, nn.Linear],
    teacher: tuple[Tensor, nn.Linear],
    targets: Tensor,
    *,
    padding: int,
    smoothing: float,
    weight: float,
    temperature: float,
) -> Tensor:
    """The loss in nats, summed over the target tokens that are not padding: a scalar with a gradient for the
    student alone.

    student, teacher: decoder states (B, T, D), which may differ in D, and the output projection of each;
    targets (B, T) ids. Under autocast the products run in its type, the softmaxes in fp32."""
    real = targets != padding
    device = targets.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else student[0].dtype
    h, w = of_linear(student[0][real], student[1])
    dense, dense_w = of_linear(teacher[0][real], teacher[1])
    with torch.autocast(device, enabled=False):
        numbers = (smoothing, weight, temperature)
        result = _DistilledCrossEntropy.apply(
            h, w, (dense.detach(), dense_w.detach()), targets[real], numbers, dtype
        )
    assert isinstance(result, Tensor)
    return result


def of_linear(hidden: Tensor, output: nn.Linear) -> tuple[Tensor, Tensor]:
    """States (N, D) and weight (V, D) whose product is the logits: with a bias as one more column, whose
    input is 1."""
    bias: Tensor | None = output.bias
    if bias is None:
        return hidden, output.weight
    return F.pad(hidden, (0, 1), value=1.0), torch.cat([output.weight, bias[:, None]], dim=1)
