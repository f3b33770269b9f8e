"""`nn.MultiheadAttention` with fewer heads than fill its width: what torch's does, by three projections in
place of its one weight.

    q_proj.weight, k_proj.weight, v_proj.weight (H * K, D), and their biases   for in_proj_weight (3 * D, D)
    and in_proj_bias

Its forward takes and returns what torch's does. The fused kernels of `nn.TransformerEncoderLayer` and
`nn.TransformerEncoder`, which read in_proj_weight, are not taken where an attention is smaller. Letters: N
batch, H heads, L query positions, S key positions, K head width.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .refit import LEFT, Refitted, check_no_added_keys, refitted

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class SmallerTorchAttention(Refitted):
    """The forward of an `nn.MultiheadAttention` that has lost heads, in training and evaluation."""

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attention's output, of the query's shape, and the weights (N, L, S) or (N, H, L, S) if they are
        needed, without N where the input has no batch.

        attn_mask: (L, S) or, one a head, (N * H, L, S), where H may also be the number of heads at first.
        is_causal says that attn_mask is the causal mask, as in torch. Raises ValueError at masks of other
        shapes or types, is_causal without its mask, or nested tensors."""
        if query.is_nested or key.is_nested:
            raise ValueError(
                "an attention that lost heads takes no nested tensors: set use_nested_tensor = False on "
                "nn.TransformerEncoder"
            )
        if is_causal and attn_mask is None:
            raise ValueError(
                "is_causal says that attn_mask is the causal mask, and there is none: give attn_mask"
            )
        single = query.dim() == 2
        if single:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # (N, H, L or S, K)
            for project, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        # the kernel then makes the mask itself
        by_kernel = is_causal and key_padding_mask is None and not need_weights
        mask = None if by_kernel else self.added_mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)  # (N, H, L, S)
            weights = F.dropout(F.softmax(scores if mask is None else scores + mask, dim=-1), dropout)
            z = weights @ v
        else:
            z = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=by_kernel)
        out = self.out_proj(z.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.sum(1) / max(self.num_heads, 1)
        if single:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def added_mask(
        self: Any, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor
    ) -> Tensor | None:
        """What is added to the scores, broadcast to (N, H, L, S)."""
        mask = None
        if attn_mask is not None:
            mask = added("attn_mask", attn_mask, q)
            if mask.dim() == 3:
                mask = self.by_head(mask, len(q))
            elif mask.dim() != 2:
                raise ValueError(f"attn_mask must be (L, S) or (N * H, L, S), got {tuple(mask.shape)}")
        if key_padding_mask is not None:
            padding = added("key_padding_mask", key_padding_mask, q)[:, None, None]
            mask = padding if mask is None else mask + padding
        return mask

    def by_head(self: Any, mask: Tensor, sentences: int) -> Tensor:
        """(N, H, L, S) of (N * H, L, S), H either the number of heads now or that at first."""
        left = getattr(self, LEFT, (True,) * self.num_heads)
        if len(mask) == sentences * len(left):
            return mask.unflatten(0, (sentences, len(left)))[
                :, [head for head, there in enumerate(left) if there]
            ]
        if len(mask) != sentences * self.num_heads:
            raise ValueError(
                f"attn_mask of shape {tuple(mask.shape)} must have {self.num_heads} or, as at first, "
                f"{len(left)} rows for each of the "
                f"{sentences} sentences"
            )
        return mask.unflatten(0, (sentences, self.num_heads))


def added(name: str, mask: Tensor, q: Tensor) -> Tensor:
    """A mask as numbers to add. Raises ValueError unless it holds bools, True where nothing is seen, or
    floats."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -math.inf)
    if not mask.is_floating_point():
        raise ValueError(
            f"{name} must hold bools, True where a key is not seen, or floats to add to the scores; got "
            f"{mask.dtype}"
        )
    return mask.to(q.dtype)


def torch_refit(module: Any) -> dict[str, Any]:
    """The attributes of an `nn.MultiheadAttention` that can lose heads. Raises ValueError where it adds keys
    of its own."""
    check_no_added_keys(module)
    weights = module.in_proj_weight.chunk(3) if module.in_proj_weight is not None else [
        getattr(module, f"{name}_weight") for name in _PROJECTIONS
    ]  # fmt: skip
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    gone = ("in_proj_weight", "in_proj_bias", *(f"{name}_weight" for name in _PROJECTIONS))
    for name in gone:
        if name not in module._parameters:
            raise ValueError(
                f"{name} of {type(module).__name__} is no plain weight; undo parametrisations and "
                "quantisation first"
            )
    return {
        "__class__": refitted(type(module), SmallerTorchAttention),
        **{name: linear_of(*parts) for name, *parts in zip(_PROJECTIONS, weights, biases, strict=True)},
        **dict.fromkeys(gone),
        # by which nn.TransformerEncoderLayer knows that its fused kernel does not fit
        "_qkv_same_embed_dim": False,
    }


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=bias.requires_grad)
    return linear


def without_nested_tensors(model: nn.Module) -> None:
    """Encoders with a smaller attention pad their batches: nested tensors are for fused kernels of whole
    attentions."""
    smaller = [module for module in model.modules() if isinstance(module, SmallerTorchAttention)]
    for encoder in nesting(model, smaller):
        encoder.use_nested_tensor = False


def nesting(model: nn.Module, parts: Iterable[nn.Module]) -> list[nn.TransformerEncoder]:
    """The encoders that hold some of these parts and give their layers nested tensors."""
    inside = set(parts)
    encoders = [each for each in model.modules() if isinstance(each, nn.TransformerEncoder)]
    return [each for each in encoders if each.use_nested_tensor and not inside.isdisjoint(each.modules())]


@contextmanager
def padded(model: nn.Module, parts: Iterable[nn.Module]) -> Iterator[None]:
    """Meanwhile encoders that hold some of these parts pad their batches."""
    encoders = nesting(model, parts)
    for encoder in encoders:
        encoder.use_nested_tensor = False
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.use_nested_tensor = True
