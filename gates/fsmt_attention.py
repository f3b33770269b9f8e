"""FSMT's attention with fewer heads than fill its width: transformers' forward, with the shape of z from the
heads in place of the query. LED's decoder and WavLM attend by the same steps (`attended`).

It works on transformers' caches by their attributes, so that nothing of transformers is imported here.
Letters: B batch, H heads, L query positions, S key positions, K head width, D model width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .refit import Refitted


def attended(
    attention: Any, x: Tensor, states: Tensor | None, cache: Any, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What W_O reads, (B, L, H * K), of x (B, L, D), and the weights (B, H, L, S).

    states: what cross-attention reads (B, S, D), None in self-attention. cache: transformers', or None; k and
    v go behind those that it has of this layer, or in cross-attention are its own. mask: is added to the
    scores."""
    cross, own = states is not None, cache

    def by_head(x: Tensor) -> Tensor:
        return x.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)  # (B, H, S, K)

    if hasattr(cache, "is_updated"):  # the cache of a decoder, one part for each kind
        own = cache.cross_attention_cache if cross else cache.self_attention_cache
    if cross and cache is not None and cache.is_updated.get(attention.layer_idx):
        kept = own.layers[attention.layer_idx]
        k, v = kept.keys, kept.values
    else:
        k, v = (by_head(project(states if cross else x)) for project in (attention.k_proj, attention.v_proj))
        if cache is not None:
            k, v = own.update(k, v, attention.layer_idx)
            if cross:
                cache.is_updated[attention.layer_idx] = True
    scores = by_head(attention.q_proj(x) * attention.scaling) @ k.transpose(2, 3)  # (B, H, L, S)
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    z = F.dropout(weights, attention.dropout, attention.training) @ v
    return z.transpose(1, 2).flatten(2), weights


class SmallerFSMTAttention(Refitted):
    """The forward of an FSMT attention that has lost heads; it steps through a cache as before."""

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None = None,
        layer_state: Any = None,
        attn_mask: Tensor | None = None,
        output_attentions: bool | None = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (L, B, D) for a query (L, B, D), and the weights (B, H, L, S) if they are asked for."""
        if key_padding_mask is not None and key_padding_mask.dim() > 0:
            padding = key_padding_mask[:, None, None].to(query) * torch.finfo(query.dtype).min
            attn_mask = padding if attn_mask is None else attn_mask + padding
        states = key.transpose(0, 1) if self.encoder_decoder_attention else None
        z, weights = attended(self, query.transpose(0, 1), states, layer_state, attn_mask)
        # W_O reads (L, B, H * K), as its rule says
        return self.out_proj(z.transpose(0, 1)), weights if output_attentions else None
