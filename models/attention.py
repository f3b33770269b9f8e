"""Multi-head attention with a visible gate slot.   Vaswani et al. 2017; the gate is Voita et al. 2019's g and
Michel et al. 2019's xi.

out = W_O [xi_1 z_1; ...; xi_H z_H] + b_O,   z_h = softmax(q_h k_h^T / sqrt(K) + b_h) v_h

b_h, a number for each distance, is there with relative positions alone (models/positions.py).
Letters: B batch, H heads, K head width, D model width, L query positions, S key positions.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from headgates.gates import HeadGate, gate_heads
from headgates.gates.attach_modes import scale_columns
from headgates.models.cpu_kernels import Dropout, Linear, attend, product
from headgates.models.positions import DistanceBias


class MultiHeadAttention(nn.Module):
    """H heads of width K over a model width D; H * K need not be D, and H may be 0 (then only the bias of W_O
    comes out). distances: of self-attention with relative positions."""

    def __init__(
        self,
        d_model: int,
        heads: int,
        head_width: int,
        dropout: float = 0.0,
        *,
        biases: bool = True,
        distances: DistanceBias | None = None,
    ):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.q_proj = linear(d_model, heads * head_width, biases)
        self.k_proj = linear(d_model, heads * head_width, biases)
        self.v_proj = linear(d_model, heads * head_width, biases)
        self.out_proj = linear(heads * head_width, d_model, biases)
        self.distances = distances
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

    def score_bias(
        self, bias: Tensor | None, queries: int, keys: int, span: tuple[int, int] | None
    ) -> Tensor | None:
        """All that is added to the scores: `bias` and, with relative positions, that of the distances."""
        if self.distances is None:
            return bias
        own = self.distances(queries, keys, span[0] if span else 0)  # (H, L, S)
        return own if bias is None else own + bias

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
        span (start, length): the sentence of each row and the positions of the queries, for relative
        positions and for gates that differ by sentence or position; else they begin at 0."""
        if self.heads == 0:
            if self.keep is not None:
                self.keep(x.new_empty(*keys.shape[:2], x.shape[1], keys.shape[2]))
            return of_nothing(self.out_proj, x)
        q = self.split(self.q_proj(x))  # (B, H, L, K)
        bias = self.score_bias(bias, x.shape[1], keys.shape[2], span)
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


def of_nothing(out: Linear, x: Tensor) -> Tensor:
    """What `out` gives where it has no inputs left: its bias, or 0, in the shape of x (B, L, D)."""
    return torch.zeros_like(x) if out.bias is None else out.bias.expand_as(x)


def linear(inputs: int, outputs: int, bias: bool = True) -> Linear:
    """Return a Linear; an empty one, which stands for removed heads, gives no warning and needs no
    gradient."""
    if inputs and outputs:
        return Linear(inputs, outputs, bias)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        empty = Linear(inputs, outputs, bias)
    for parameter in empty.parameters():
        parameter.requires_grad_(parameter.numel() > 0)
    return empty
