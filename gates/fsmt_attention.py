"""FSMT's attention with fewer heads than fill its width: transformers' forward, with the shape of z from the
heads in place of the query.

It works on transformers' caches by their attributes, so that nothing of transformers is imported here.
Letters: B batch, H heads, L query positions, S key positions, K head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .refit import Refitted, refitted


class SmallerFSMTAttention(Refitted):
    """The forward of an FSMT attention that has lost heads; it steps through a cache as before."""

    num_heads: int
    head_dim: int
    scaling: float
    dropout: float
    layer_idx: int
    encoder_decoder_attention: bool
    training: bool
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        key_padding_mask: Tensor | None = None,
        layer_state: Any = None,
        attn_mask: Tensor | None = None,
        output_attentions: bool | None = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (L, B, D) for a query (L, B, D), and the weights (B, H, L, S) if they are asked for."""
        k, v = self.keys_values(key if self.encoder_decoder_attention else query, layer_state)
        scores = self.by_head(self.q_proj(query) * self.scaling) @ k.transpose(2, 3)  # (B, H, L, S)
        if attn_mask is not None:
            scores = scores + attn_mask
        if key_padding_mask is not None and key_padding_mask.dim() > 0:
            scores = scores.masked_fill(key_padding_mask[:, None, None], torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1)
        z = F.dropout(weights, self.dropout, self.training) @ v  # (B, H, L, K)
        return self.out_proj(z.permute(2, 0, 1, 3).flatten(2)), weights if output_attentions else None

    def keys_values(self, states: Tensor | None, layer_state: Any) -> tuple[Tensor, Tensor]:
        """k and v (B, H, S, K): of these states (S, B, D) after those in the cache, or, in cross-attention,
        the cache's own."""

        def made() -> tuple[Tensor, Tensor]:
            assert states is not None
            return self.by_head(self.k_proj(states)), self.by_head(self.v_proj(states))

        return cached(made, layer_state, self.layer_idx, cross=self.encoder_decoder_attention)

    def by_head(self, x: Tensor) -> Tensor:
        """(B, H, L, K) of (L, B, H * K)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)


def cached(
    made: Callable[[], tuple[Tensor, Tensor]], cache: Any, layer: int, *, cross: bool
) -> tuple[Tensor, Tensor]:
    """k and v (B, H, S, K) with those that transformers' cache has of this layer: after them, or in
    cross-attention in their place. made: k and v of this step."""
    both = cache
    if hasattr(both, "is_updated"):  # the cache of a decoder, one part for each kind
        cache = both.cross_attention_cache if cross else both.self_attention_cache
        if cross and both.is_updated.get(layer):
            return cache.layers[layer].keys, cache.layers[layer].values
    k, v = made()
    if cache is not None:
        k, v = cache.update(k, v, layer)
        if cross:
            both.is_updated[layer] = True
    return k, v


def fsmt_refit(module: nn.Module) -> dict[str, Any]:
    return {} if isinstance(module, Refitted) else {"__class__": refitted(type(module), SmallerFSMTAttention)}
