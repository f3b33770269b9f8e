"""A stand-in with the layout of fairseq's encoder-decoder: time first, and an attention that calls `out_proj`
in one of its two paths only.

Written after fairseq/modules/multihead_attention.py and transformer_layer.py of fairseq 0.12, which does not
install on current Pythons."""

import torch
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
        self.fused = True  # fairseq takes the other path while decoding step by step
        self.skip_embed_dim_check = False  # fairseq's own pruning of heads sets it
        self.bias_k = self.bias_v = None
        self.add_zero_attn = False

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        length, batch, width = query.shape
        if not self.skip_embed_dim_check:
            assert width == self.embed_dim
        if self.fused and not self.skip_embed_dim_check:
            return functional.multi_head_attention_forward(
                query,
                key,
                key,
                self.embed_dim,
                self.num_heads,
                None,
                torch.cat((self.q_proj.bias, self.k_proj.bias, self.v_proj.bias)),
                self.bias_k,
                self.bias_v,
                self.add_zero_attn,
                0.0,
                self.out_proj.weight,
                self.out_proj.bias,
                self.training,
                need_weights=False,
                use_separate_proj_weight=True,
                q_proj_weight=self.q_proj.weight,
                k_proj_weight=self.k_proj.weight,
                v_proj_weight=self.v_proj.weight,
            )[0]
        q, k, v = (
            x.contiguous().view(-1, batch * self.num_heads, self.head_dim).transpose(0, 1)
            for x in (self.q_proj(query), self.k_proj(key), self.v_proj(key))
        )
        weights = functional.softmax(q @ k.transpose(1, 2) * self.head_dim**-0.5, dim=-1)
        return self.out_proj((weights @ v).transpose(0, 1).contiguous().view(length, batch, self.embed_dim))


MultiheadAttention.__module__ = "fairseq.modules.multihead_attention"


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.self_attn, self.norm = MultiheadAttention(width, heads), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.self_attn(x, x))


class DecoderLayer(EncoderLayer):
    def __init__(self, width: int, heads: int):
        super().__init__(width, heads)
        self.encoder_attn = MultiheadAttention(width, heads)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = super().forward(x)
        return x + self.encoder_attn(x, memory)


class Stack(nn.Module):
    def __init__(self, words: int, width: int, layers: list[nn.Module]):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(words, width), nn.ModuleList(layers)

    def forward(self, tokens: Tensor, *memory: Tensor) -> Tensor:
        x = self.embed_tokens(tokens).transpose(0, 1)  # (T, B, D)
        for layer in self.layers:
            x = layer(x, *memory)
        return x


class FairseqModel(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int):
        super().__init__()
        self.encoder = Stack(words, width, [EncoderLayer(width, heads) for _ in range(layers)])
        self.decoder = Stack(words, width, [DecoderLayer(width, heads) for _ in range(layers)])

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        return self.decoder(prev_output_tokens, self.encoder(src_tokens)).transpose(0, 1)  # (B, T, D)
