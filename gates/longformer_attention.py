"""The attentions of Longformer and of LED with fewer heads than fill their width: transformers' forward, with
the shape of z from the heads in place of the input.

Tokens see a window on both sides and the tokens of global attention, which see all by projections of their
own.   Letters: B batch, L positions, S key positions, H heads, K head width, D model width, W half of the
window, G most tokens of global attention in a sentence.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .fsmt_attention import attended
from .refit import Refitted, refitted


class SmallerLongformerAttention(Refitted):
    """The forward of a Longformer's attention that has lost heads; its steps are the class's own methods."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor,
        is_index_masked: Tensor,
        is_index_global_attn: Tensor,
        is_global_attn: bool,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        """The heads' outputs (B, L, H * K), before W_O, and if they are asked for the weights (B, L, H, G +
        2W + 1) and those of the tokens of global attention (B, H, G, L)."""
        x, W = (
            hidden_states.transpose(0, 1),
            self.one_sided_attn_window_size,
        )  # (L, B, D), as its methods take
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)  # (B, L, H, K)
            for project in (self.query, self.key, self.value)
        )
        q = q / math.sqrt(self.head_dim)
        # neither padding nor tokens of global attention are seen in a window
        outside = (attention_mask != 0)[:, :, None, None]
        mask = torch.zeros_like(outside, dtype=q.dtype).masked_fill(outside, torch.finfo(q.dtype).min)
        scores = self._sliding_chunks_query_key_matmul(q, k, W)  # (B, L, H, 2W + 1)
        scores = scores + self._sliding_chunks_query_key_matmul(torch.ones_like(mask), mask, W)
        if is_global_attn:
            most, tokens, places, no_places = self._get_global_attn_indices(is_index_global_attn)
            at = dict(
                max_num_global_attn_indices=most,
                is_index_global_attn_nonzero=tokens,
                is_local_index_global_attn_nonzero=places,
            )
            to_global = self._concat_with_global_key_attn_probs(
                query_vectors=q, key_vectors=k, is_local_index_no_global_attn_nonzero=no_places, **at
            )
            scores = torch.cat([to_global, scores], -1)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32)
        weights = weights.masked_fill(is_index_masked[:, :, None, None], 0.0).type_as(scores)
        weights = F.dropout(weights, self.dropout, self.training)
        if not is_global_attn:
            z = self._sliding_chunks_matmul_attn_probs_value(weights, v, W).flatten(2)
            return (z, weights) if output_attentions else (z,)
        z = self._compute_attn_output_with_global_indices(value_vectors=v, attn_probs=weights, **at).flatten(
            2
        )
        from_global, of_global = self._compute_global_attn_output_from_hidden(
            hidden_states=x,
            is_local_index_no_global_attn_nonzero=no_places,
            is_index_masked=is_index_masked,
            **at,
        )
        z[tokens] = from_global[places[0], :, places[1]].flatten(1)
        if not output_attentions:
            return (z,)
        weights[tokens] = 0  # they are not what gave those tokens their outputs
        return z, weights, of_global


class SmallerLEDDecoderAttention(Refitted):
    """The forward of an attention of LED's decoder that has lost heads."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Any]:
        """The output (B, L, D), the weights (B, H, L, S) if they are asked for, and the cache."""
        z, weights = attended(self, hidden_states, key_value_states, past_key_values, attention_mask)
        return self.out_proj(z), weights if output_attentions else None, past_key_values


def longformer_refit(module: nn.Module) -> dict[str, Any]:
    """The class of the attention inside a Longformer's or an LED encoder's."""
    name = "self" if hasattr(module, "self") else "longformer_self_attn"
    inner = module.get_submodule(name)
    if isinstance(inner, Refitted):
        return {}
    return {f"{name}.__class__": refitted(type(inner), SmallerLongformerAttention)}
