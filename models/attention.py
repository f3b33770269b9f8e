"""Multi-head attention with a visible gate slot.   Vaswani et al. 2017; the gate is Voita et al. 2019's g and
Michel et al. 2019's xi.

out = W_O [xi_1 z_1; ...; xi_H z_H] + b_O,   z_h = softmax(q_h k_h^T / sqrt(K)) v_h
Letters: B batch, H heads, K head width, D model width, L query positions, S key positions.
"""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.gates import HeadGate, gate_heads
from headgates.models.dropout import Dropout
from headgates.models.linear import Linear, product

VECTOR = 16  # numbers that a CPU of today adds at once
SMALL_PRODUCT = 400  # multiply-adds below which torch takes plain loops for each of a batch of products


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

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # (B, H, L, K)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """k and v (B, H, S, K) of x (B, S, D)."""
        if self.heads == 0:
            empty = x.new_empty(x.shape[0], 0, x.shape[1], self.head_width)
            return empty, empty
        return self.split(self.k_proj(x)), self.split(self.v_proj(x))

    def mixed(self, x: Tensor, keys: Tensor, inputs: Tensor, bias: Tensor | None = None) -> Tensor:
        """What each head takes in before W_V, (B, L, H, D): inputs (B, S, D), those of `keys_values`, by its
        attention weights.

        W_V's rows of the head, and its bias, make z_h of that. x, keys, bias: as for `forward`."""
        weights = attention_weights(
            self.split(self.q_proj(x)) * self.head_width**-0.5, keys, bias
        )  # (B, H, L, S)
        return (weights @ inputs[:, None]).transpose(1, 2)

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
        """Return the attention's output (B, L, D) for queries x (B, L, D), and the weights (B, H, L, S) if
        they are needed, else None.

        bias: added to the scores, broadcast to (B, H, L, S); -inf where a key must not be seen. rows (B,),
        span (start, length): the sentence of each row and the positions of the queries, for gates that differ
        by sentence or
        position."""
        if self.heads == 0:
            weights = x.new_empty(x.shape[0], 0, x.shape[1], keys.shape[2]) if need_weights else None
            return self.out_proj.bias.expand_as(x), weights
        q = self.split(self.q_proj(x))  # (B, H, L, K)
        weights = None
        if need_weights or written_out(q):
            weights = attention_weights(q * self.head_width**-0.5, keys, bias)  # (B, H, L, S)
            z = mixture(self.dropout(weights), values)  # (B, H, L, K)
        else:
            p = self.dropout.p if self.training else 0.0
            z = F.scaled_dot_product_attention(
                q, keys, values, None if bias is None else bias.to(q.dtype), dropout_p=p
            )
        xi = None if self.gate is None else self.gate(rows, span)
        if xi is not None and xi.dim() > 1:
            z = gate_heads(z, xi)
        flat = z.transpose(1, 2).flatten(2)  # (B, L, H * K)
        if xi is not None and xi.dim() == 1:
            # the same product, taken on W_O's columns: H * K by D numbers instead of every position's
            columns = self.out_proj.weight * xi.repeat_interleave(self.head_width).to(
                self.out_proj.weight.dtype
            )
            out = product(flat, columns, self.out_proj.bias)
        else:
            out = self.out_proj(flat)
        return out, weights if need_weights else None


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


def attention_weights(q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(q k^T + bias) over the keys, (B, H, L, S)."""
    if q.device.type != "cpu" or keys.shape[2] >= VECTOR:
        scores = torch.matmul(q, keys.transpose(-1, -2))
        return torch.softmax(scores if bias is None else scores + bias, dim=-1)
    if q.shape[2] == 1 and bias is None:  # in a step of search
        scores = torch.matmul(q, keys.transpose(-1, -2)).flatten(0, 2).t().contiguous()  # (S, B * H)
        return torch.softmax(scores, dim=0).t().view(*q.shape[:3], -1)
    scores = torch.matmul(keys, q.transpose(-1, -2))  # (B, H, S, L)
    if bias is not None:
        scores = scores + bias.transpose(-1, -2).to(scores.dtype)
    # a softmax over a last dimension shorter than a vector goes number by number, over another one it goes
    # over many columns at once;
    # under autocast it would copy bf16 scores to fp32 and back, though its sums are fp32 anyway
    with torch.autocast(q.device.type, enabled=False):
        return torch.softmax(scores, dim=-2).transpose(-1, -2)


def mixture(weights: Tensor, values: Tensor) -> Tensor:
    """Return the sum (B, H, L, K) of values (B, H, S, K) by attention weights (B, H, L, S)."""
    if (
        weights.device.type == "cpu"
        and weights.shape[2] == 1
        and values.shape[2] * values.shape[3] < SMALL_PRODUCT
    ):
        return (weights.transpose(2, 3) * values).sum(2, keepdim=True)
    return torch.matmul(weights, values)


def written_out(q: Tensor) -> bool:
    """Return whether two batched products and a softmax are faster than the fused kernel for queries q (B, H,
    L, K).

    They are on a CPU for sentences, where the fused kernel's backward pass is slow; the fused kernel is
    faster on a GPU, and on long inputs, where it also saves memory. Measured with both ways in turns, at
    lengths 8 to 512 and equal tokens
    a batch."""
    return q.device.type == "cpu" and q.shape[2] <= 512
