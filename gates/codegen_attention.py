"""CodeGen's attention with any number of heads: its own forward cuts the outputs of one projection into
quarters, each of H / 4 heads' q, then their v, then their k.

Three projections take the place of that one, and give it quarters of equal width, wherever the heads begin.
Letters: B batch, L positions, H heads, K head width, D model width.
"""

from typing import Any

import torch
from torch import Tensor

from .refit import Refitted, refitted
from .site_rule import plain_projection
from .torch_attention import linear_of

_QUARTERS = 4  # for as many cores of a TPU


class SmallerCodeGenAttention(Refitted):
    """A CodeGen attention that has lost heads."""

    def qkv_proj(self: Any, x: Tensor) -> Tensor:
        """(B, L, 3 * H * K) of x (B, L, D), in quarters."""
        parts = (
            project(x).unflatten(-1, (_QUARTERS, -1)) for project in (self.q_proj, self.v_proj, self.k_proj)
        )
        return torch.cat([*parts], -1).flatten(-2)

    def _split_heads(self, x: Tensor, heads: int, width: int, mp_num: int) -> Tensor:
        """(B, L, H, K) of one part's quarters (B, L, 4, H * K / 4)."""
        return x.flatten(-2).unflatten(-1, (heads, width))


def codegen_refit(module: Any) -> dict[str, Any]:
    """The attributes of a CodeGen attention that can lose heads. Raises ValueError where a head's width does
    not divide into quarters."""
    if module.head_dim % _QUARTERS:
        raise ValueError(
            f"heads of {type(module).__name__} can be gated, not removed, where a head's width is no "
            f"multiple of {_QUARTERS}: its forward cuts q, k and v into as many parts; got {module.head_dim}"
        )
    weight = plain_projection(module, "qkv_proj").weight
    parts = zip("qvk", weight.unflatten(0, (_QUARTERS, 3, -1)).unbind(1), strict=True)
    return {
        "__class__": refitted(type(module), SmallerCodeGenAttention),
        "qkv_proj": None,
        **{f"{name}_proj": linear_of(rows.flatten(0, 1), None) for name, rows in parts},
    }
