"""The training loss with a teacher, without the logits of either: as models/loss.py does, chunk by chunk.

(1 - w) label-smoothed cross-entropy + w T^2 KL(teacher || student), both softmaxes at temperature T (Hinton
et al. 2015, arXiv:1503.02531,
section 2), summed over target tokens.   Letters: N tokens, D model width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.models.loss import CHUNK


class _ByChunks(torch.autograd.Function):
    """sum of loss(states, weight, chunk) over the chunks of states (N, D), with its gradients: each chunk's
    logits are made, turned into their gradients and forgotten."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, loss: Callable[[Tensor, Tensor, slice], Tensor]
    ) -> Tensor:
        total, grad_h, grad_w = (
            torch.zeros((), device=hidden.device),
            torch.empty_like(hidden),
            torch.zeros_like(weight),
        )
        for begin in range(0, len(hidden), CHUNK):
            part = slice(begin, begin + CHUNK)
            with torch.enable_grad():
                h, w = hidden[part].detach().requires_grad_(), weight.detach().requires_grad_()
                one = loss(h, w, part)
            grad_h[part], grad = torch.autograd.grad(one, (h, w))
            grad_w += grad
            total = total + one.detach()
        ctx.grads = (grad_h, grad_w)  # not inputs or outputs, so plain attributes
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *(each * grads[0] for each in ctx.grads), None


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
    y, device = targets[real], targets.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else student[0].dtype
    kind = torch.promote_types(student[0].dtype, torch.float32)
    hidden, dense = of_linear(student[0][real], student[1]), of_linear(teacher[0][real], teacher[1])

    def logits(h: Tensor, w: Tensor) -> Tensor:
        return (h.to(dtype) @ w.to(dtype).T).to(kind)  # (n, V)

    def loss(h: Tensor, w: Tensor, part: slice) -> Tensor:
        own, taught = logits(h, w), logits(dense[0][part], dense[1]).detach()
        log_s, log_q = (F.log_softmax(each / temperature, 1) for each in (own, taught))
        soft = F.kl_div(log_s, log_q, log_target=True, reduction="sum")
        hard = F.cross_entropy(own, y[part], label_smoothing=smoothing, reduction="sum")
        return (1 - weight) * hard + weight * temperature**2 * soft

    with torch.autocast(device, enabled=False):
        result = _ByChunks.apply(*hidden, loss)
    assert isinstance(result, Tensor)
    return result


def of_linear(hidden: Tensor, output: nn.Linear) -> tuple[Tensor, Tensor]:
    """States (N, D) and weight (V, D) whose product is the logits: with a bias as one more column, whose
    input is 1."""
    bias: Tensor | None = output.bias
    if bias is None:
        return hidden, output.weight
    return F.pad(hidden, (0, 1), value=1.0), torch.cat([output.weight, bias[:, None]], dim=1)
