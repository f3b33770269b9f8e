"""Self-attention as somebody else would write it, for site rules of one's own."""

from torch import Tensor, nn


class PlainAttention(nn.Module):
    """Of x (B, L, D), with heads of this width, and of another in v and W_O where that is given."""

    def __init__(self, d_model: int, heads: int, width: int, value_width: int = 0):
        super().__init__()
        self.num_heads = heads
        self.q_proj, self.k_proj = (nn.Linear(d_model, heads * width) for _ in range(2))
        self.v_proj = nn.Linear(d_model, heads * (value_width or width))
        self.out_proj = nn.Linear(heads * (value_width or width), d_model)

    def z(self, x: Tensor) -> Tensor:  # (B, H, L, K)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (each(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in projections)
        return nn.functional.scaled_dot_product_attention(q, k, v)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.z(x))

    def project(self, z: Tensor) -> Tensor:
        return self.out_proj(z.transpose(1, 2).flatten(2))


class ReadAttention(PlainAttention):
    """It reads the weight of W_O and does not call it."""

    def project(self, z: Tensor) -> Tensor:
        return nn.functional.linear(z.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
