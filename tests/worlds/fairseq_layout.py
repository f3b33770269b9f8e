"""A stand-in with the layout of fairseq's encoder-decoder: time first, and an attention that calls `out_proj`
in one of its two paths only.

Written after fairseq/modules/multihead_attention.py and transformer_layer.py of fairseq 0.12, which does not
install on current Pythons."""

from torch import Tensor, nn
from torch.nn import functional


class MultiheadAttention(nn.Module):
    """Input shape: Time x Batch x Channel."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )
        self.skip_embed_dim_check = False  # fairseq's own pruning of heads sets it
        self.bias_k = self.bias_v = None
        self.add_zero_attn = False

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        length, batch, width = query.shape
        q, k, v = (
            x.contiguous().view(-1, batch * self.num_heads, self.head_dim).transpose(0, 1)
            for x in (self.q_proj(query), self.k_proj(key), self.v_proj(key))
        )
        z = functional.softmax(q @ k.transpose(1, 2) * self.head_dim**-0.5, dim=-1) @ v
        z = z.transpose(0, 1).contiguous().view(length, batch, self.embed_dim)
        if self.skip_embed_dim_check:
            return self.out_proj(z)
        assert width == self.embed_dim
        return functional.linear(z, self.out_proj.weight, self.out_proj.bias)  # as torch's fused forward


MultiheadAttention.__module__ = "fairseq.modules.multihead_attention"


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, *, cross: bool):
        super().__init__()
        self.self_attn, self.norm = MultiheadAttention(width, heads), nn.LayerNorm(width)
        self.encoder_attn = MultiheadAttention(width, heads) if cross else None

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        x = self.norm(x + self.self_attn(x, x))
        return x if self.encoder_attn is None else x + self.encoder_attn(x, *memory)


class FairseqModel(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int):
        super().__init__()
        self.encoder, self.decoder = (
            nn.ModuleDict(
                {
                    "embed_tokens": nn.Embedding(words, width),
                    "layers": nn.ModuleList(Layer(width, heads, cross=cross) for _ in range(layers)),
                }
            )
            for cross in (False, True)
        )

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        x = self.encoder["embed_tokens"](src_tokens).transpose(0, 1)  # (T, B, D)
        for layer in self.encoder["layers"]:
            x = layer(x)
        y = self.decoder["embed_tokens"](prev_output_tokens).transpose(0, 1)
        for layer in self.decoder["layers"]:
            y = layer(y, x)
        return y.transpose(0, 1)
