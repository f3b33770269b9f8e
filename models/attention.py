"""Multi-head attention with a visible gate slot.   Vaswani et al. 2017; the gate is Voita et al. 2019's g and
Michel et al. 2019's xi.

out = W_O [xi_1 z_1; ...; xi_H z_H] + b_O,   z_h = softmax(q_h k_h^T / sqrt(K)) v_h
Letters: B batch, H heads, K head width, D model width, L query positions, S key positions.
"""

import warnings
from collections.abc import Callable

from torch import Tensor, nn

from headgates.gates import HeadGate, gate_heads
from headgates.gates.attach_modes import scale_columns
from headgates.models.cpu_kernels import Dropout, Linear, attend, product


class MultiHeadAttention(nn.Module):
    """H heads of width K over a model width D; H * K need not be D, and H may be 0 (then only the bias of W_O
    comes out)."""

    def __init__(self, d_model: int, heads: int, head_width: int, dropout: float = 0.0):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.q_proj = linear(d_model, heads * head_width)
        self.k_proj = linear(d_model, heads * head_width)
        self.v_proj = linear(d_model, heads * head_width)
        self.out_proj = linear(heads * head_width, d_model)
        self.dropout = Dropout(dropout)
        self.gate: HeadGate | None = (
            None  # the slot: gates.attach puts a gate here, gates.detach takes it away
        )
        self.keep: Callable[[Tensor], None] | None = None  # gets the weights (B, H, L, S) of every pass

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # (B, H, L, K)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """k and v (B, H, S, K) of x (B, S, D)."""
        if self.heads == 0:
            empty = x.new_empty(x.shape[0], 0, x.shape[1], self.head_width)
            return empty, empty
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
    ) -> Tensor:
        """The attention's output (B, L, D) for queries x (B, L, D).

        bias: added to the scores, broadcast to (B, H, L, S); -inf where a key must not be seen. rows (B,),
        span (start, length): the sentence of each row and the positions of the queries, for gates that differ
        by sentence or position."""
        if self.heads == 0:
            if self.keep is not None:
                self.keep(x.new_empty(*keys.shape[:2], x.shape[1], keys.shape[2]))
            return self.out_proj.bias.expand_as(x)
        q = self.split(self.q_proj(x))  # (B, H, L, K)
        z = attend(q, keys, values, bias, self.dropout, self.keep)
        xi = None if self.gate is None else self.gate(rows, span)
        if xi is not None and xi.dim() > 1:
            z, xi = gate_heads(z, xi), None
        return project(z.transpose(1, 2).flatten(2), self.out_proj, xi)


def project(z: Tensor, out: Linear, xi: Tensor | None) -> Tensor:
    """`out` of z (B, L, H * K), head h times xi_h of (H,); the same product, taken on the columns of its
    weight: H * K by D numbers instead of every position's."""
    if xi is None:
        return out(z)
    return product(z, scale_columns(out.weight, xi, transposed=False), out.bias)


def linear(inputs: int, outputs: int) -> Linear:
    """Return a Linear; an empty one, which stands for removed heads, gives no warning and needs no
    gradient."""
    if inputs and outputs:
        return Linear(inputs, outputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        empty = Linear(inputs, outputs)
    for parameter in empty.parameters():
        parameter.requires_grad_(parameter.numel() > 0)
    return empty
