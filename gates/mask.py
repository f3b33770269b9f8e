"""Masks: gates that are given, not learned, for ablation and pruned models; xi = 1 with a gradient measures
importance.

Letters: B batch, H heads, L query positions, K head width, N rows (sentences, or the beams of them).
"""

import torch
from torch import Tensor

from .base import HeadGate


class HeadMask(HeadGate):
    """A fixed xi: (H,) for all, (B, H) by sentence, (B, H, L) by sentence and query position.

    `assign` changes it, also to a tensor that asks for its gradient (dL/dxi at xi = 1 is Michel's
    importance). Only an (H,) mask is part of the state dict: the others belong to one batch."""

    given = True
    xi: Tensor

    def __init__(self, heads: int, xi: Tensor | None = None):
        super().__init__(heads)
        self.register_buffer("xi", torch.ones(heads, dtype=torch.float32), persistent=True)
        if xi is not None:
            self.assign(xi)

    def assign(self, xi: Tensor) -> None:
        """Set xi. Raises ValueError unless its shape is (H,), (B, H) or (B, H, L)."""
        xi = torch.as_tensor(xi, device=self.xi.device)  # a HeadMap's rows are on the CPU
        if xi.dim() not in (1, 2, 3) or xi.shape[min(xi.dim() - 1, 1)] != self.heads:
            raise ValueError(
                f"expected xi of shape (H,), (B, H) or (B, H, L) with H = {self.heads}, got {tuple(xi.shape)}"
            )
        self.xi = xi if xi.is_floating_point() and xi.dtype != torch.float64 else xi.to(torch.float32)
        self._non_persistent_buffers_set.discard("xi")
        if xi.dim() > 1:
            self._non_persistent_buffers_set.add("xi")

    def forward(self, rows: Tensor | None = None, span: tuple[int, int] | None = None) -> Tensor:
        xi = self.xi
        if xi.dim() == 1:
            return xi
        if rows is not None:
            xi = xi[rows]  # (N, H) or (N, H, L)
        if xi.dim() == 3 and span is not None:
            start, length = span
            if start + length > xi.shape[2]:
                raise ValueError(
                    f"the mask covers {xi.shape[2]} positions, position {start + length} was asked for; "
                    "give a longer mask"
                )
            xi = xi[:, :, start : start + length]
        return xi

    def test_value(self) -> Tensor:
        if self.xi.dim() != 1:
            raise ValueError(
                f"a mask of shape {tuple(self.xi.shape)} has no single value a head; it differs by sentence"
            )
        return self.xi


def gate_heads(z: Tensor, xi: Tensor) -> Tensor:
    """Each head's output z (B, H, L, K) times its gate xi, of shape (H,), (B, H) or (B, H, L)."""
    if xi.dim() < 3:  # the same at all positions
        xi = xi[..., None]
    return z * xi[..., None].to(z)
