"""Dropout with cheap random numbers on a CPU.

On a CPU `bernoulli_` draws one double for every unit and takes as long as a small matrix product. Here eight
units share one 64-bit random number, a byte each, so the probability is a multiple of 1/256; the scale uses
that probability, so the expectation is exact.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zero each unit with probability p (rounded to 1/256 on a CPU) and scale the rest by 1 / (1 - p). Does
    nothing in evaluation."""

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"expected a dropout probability in [0, 1), got {p}")
        self.p = p

    @property
    def threshold(self) -> int:
        """Of 256 equally likely draws, those below it are zeroed."""
        return min(round(self.p * 256), 255)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.threshold == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * keep_mask(x.shape, self.threshold, x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def change_dropout(model: nn.Module, p: float) -> None:
    """Give every dropout of a model that has a probability above 0 this one. Raises ValueError where there is
    none, and p is above 0."""
    changed = [m for m in model.modules() if isinstance(m, Dropout | nn.Dropout) and m.p > 0]
    if p and not changed:
        raise ValueError(
            f"--finetune.dropout {p:g}: the model was made without dropout, so there is none to change; leave it out"
        )
    for module in changed:
        module.p = p


def keep_mask(shape: torch.Size, threshold: int, dtype: torch.dtype) -> Tensor:
    """A tensor of `shape`: 0 with probability threshold / 256, else 256 / (256 - threshold)."""
    n = shape.numel()
    # the full signed range: the default draws 63 bits, and every eighth byte would stay below 128
    draws = torch.empty((n + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    # 1 from the threshold on, else 0: comparing gives booleans, whose comparison and conversion go number by
    # number, not by vectors
    keep = draws.view(torch.uint8)[:n].view(shape).clamp_(threshold - 1, threshold).sub_(threshold - 1)
    return keep.to(dtype).mul_(256 / (256 - threshold))
