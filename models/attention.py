"""Multi-head attention with a visible gate slot.   Vaswani et al. 2017; the gate is Voita et al. 2019's g and Michel et al. 2019's xi.

out = W_O [xi_1 z_1; ...; xi_H z_H] + b_O,   z_h = softmax(q_h k_h^T / sqrt(K)) v_h
Letters: B batch, H heads, K head width, D model width, L query positions, S key positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gates import HeadGate, gate_heads
from models.dropout import Dropout


class MultiHeadAttention(nn.Module):
    """H heads of width K over a model width D; H * K need not be D, and H may be 0 (then only the bias of W_O comes out)."""

    def __init__(self, d_model: int, heads: int, head_width: int, dropout: float = 0.0):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.q_proj = nn.Linear(d_model, heads * head_width)
        self.k_proj = nn.Linear(d_model, heads * head_width)
        self.v_proj = nn.Linear(d_model, heads * head_width)
        self.out_proj = nn.Linear(heads * head_width, d_model)
        self.dropout = Dropout(dropout)
        self.gate: HeadGate | None = None  # the slot: gates.attach puts a gate here, gates.detach takes it away

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # (B, H, L, K)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """k and v (B, H, S, K) of x (B, S, D)."""
        return self.split(self.k_proj(x)), self.split(self.v_proj(x))

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None = None,
        *,
        rows: Tensor | None = None,
        span: tuple[int, int] | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attention's output (B, L, D) for queries x (B, L, D), and on request the weights (B, H, L, S), else None.

        bias: added to the scores, broadcast to (B, H, L, S); -inf where a key is not to be seen. rows (B,), span (start, length): the
        sentence of each row and the positions of the queries, for gates that differ by them; the plain batch unless given."""
        q = self.split(self.q_proj(x))  # (B, H, L, K)
        weights = None
        if need_weights or written_out(q):
            scores = torch.matmul(q * self.head_width**-0.5, keys.transpose(-1, -2))  # (B, H, L, S)
            weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
            z = torch.matmul(self.dropout(weights), values)  # (B, H, L, K)
        else:
            p = self.dropout.p if self.training else 0.0
            z = F.scaled_dot_product_attention(q, keys, values, None if bias is None else bias.to(q.dtype), dropout_p=p)
        xi = None if self.gate is None else self.gate(rows, span)
        if xi is not None and xi.dim() > 1:
            z = gate_heads(z, xi)
        flat = z.transpose(1, 2).flatten(2)  # (B, L, H * K)
        if xi is not None and xi.dim() == 1:
            # the same product, taken on W_O's columns: H * K by D numbers instead of every position's
            columns = self.out_proj.weight * xi.repeat_interleave(self.head_width)
            out = F.linear(flat, columns, self.out_proj.bias)
        else:
            out = self.out_proj(flat)
        return out, weights if need_weights else None


def written_out(q: Tensor) -> bool:
    """Whether two batched products and a softmax beat the fused kernel: they do on a CPU for sentences (the fused backward is slow
    there; benchmarks/attention_paths.py measures it), the fused one wins on a GPU and on long inputs, where it saves memory."""
    return q.device.type == "cpu" and q.shape[2] <= 512
