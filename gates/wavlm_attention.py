"""WavLM's attention with fewer heads than fill its width: torch's function, which its own forward calls, does
not take such.

The position bias of all first heads goes from layer to layer, and each head's gate on it reads a slice of the
input; so the few numbers of both stay whole.   Letters: B batch, L positions, H heads at first, K head width,
D = H * K.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .refit import LEFT, Refitted, refitted


class SmallerWavLMAttention(Refitted):
    """The forward of a WavLM attention that has lost heads."""

    num_heads: int
    head_dim: int
    scaling: float
    dropout: float
    training: bool
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    gru_rel_pos_linear: nn.Linear
    gru_rel_pos_const: nn.Parameter

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        index: int = 0,
        **_: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The output (B, L, D), the weights (B, H left, L, L), each head's own, and the position bias
        (B * H, L, L) for the next layer."""
        B, L, _width = hidden_states.shape
        left = [head for head, there in enumerate(getattr(self, LEFT, (True,) * self.num_heads)) if there]
        if position_bias is None:
            position_bias = self.compute_bias(L, L).repeat(B, 1, 1)  # type: ignore[attr-defined]
        slices = hidden_states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)[
            :, left
        ]  # (B, H left, L, K)
        gates = self.gru_rel_pos_linear(slices).unflatten(-1, (2, 4)).sum(-1)
        a, b = torch.sigmoid(gates).chunk(2, dim=-1)  # (B, H left, L, 1)
        gate = a * (b * self.gru_rel_pos_const[:, left] - 1) + 2
        q, k, v = (
            project(hidden_states).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        scores = scores + gate * position_bias.unflatten(0, (B, -1))[:, left]
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask.ne(1)[:, None, None], -math.inf)
        weights = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights, position_bias


def wavlm_refit(module: nn.Module) -> dict[str, Any]:
    return (
        {} if isinstance(module, Refitted) else {"__class__": refitted(type(module), SmallerWavLMAttention)}
    )
