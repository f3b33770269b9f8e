"""WavLM's attention with fewer heads than fill its width: torch's function, which its own forward calls, does
not take such.

The position bias of all first heads goes from layer to layer, and each head's gate on it reads a slice of the
input; so the few numbers of both stay whole.   Letters: B batch, L positions, H heads at first, K head width,
D = H * K.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .fsmt_attention import attended
from .refit import LEFT, Refitted


class SmallerWavLMAttention(Refitted):
    """The forward of a WavLM attention that has lost heads."""

    def forward(
        self: Any,
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
            position_bias = self.compute_bias(L, L).repeat(B, 1, 1)
        slices = hidden_states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)[
            :, left
        ]  # (B, H left, L, K)
        gates = self.gru_rel_pos_linear(slices).unflatten(-1, (2, 4)).sum(-1)
        a, b = torch.sigmoid(gates).chunk(2, dim=-1)  # (B, H left, L, 1)
        gate = a * (b * self.gru_rel_pos_const[:, left] - 1) + 2
        bias = gate * position_bias.unflatten(0, (B, -1))[:, left]
        if attention_mask is not None:
            bias = bias.masked_fill(attention_mask.ne(1)[:, None, None], -math.inf)
        z, weights = attended(self, hidden_states, None, None, bias)
        return self.out_proj(z), weights, position_bias
