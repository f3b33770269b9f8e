"""How much a head can write, from its weights alone: the Frobenius norm of W_O^h W_V^h.   The cheapest score: no data, no gradient.

The head's output is z_h W_O^h, and z_h is a mean of value vectors W_V^h x + b_V^h; so |W_O^h W_V^h|_F bounds how much its output
changes with its input. The attention pattern and the bias are left out. Letters: H heads, K head width, D model width.
"""

from collections.abc import Iterable
from typing import Any

import torch

from gates import HeadMap, find_sites
from gates.headmap import check_kinds
from models.attention import MultiHeadAttention
from models.transformer import Transformer


@torch.no_grad()
def weight_norm(model: Transformer, batches: Iterable[Any] = (), *, kinds: Iterable[str] | None = None) -> HeadMap:
    """Return |W_O^h W_V^h|_F of every head of the kinds (all unless named), at least 0, in fp64.

    A gate on the head does not change it, and the batches are not read."""
    del batches
    chosen = check_kinds(kinds)
    norms = {}
    for site, attention in find_sites(model).items():
        if site.kind in chosen and site.heads:
            assert isinstance(attention, MultiHeadAttention)
            w_v = attention.v_proj.weight.double().unflatten(0, (site.heads, -1))  # (H, K, D)
            w_o = attention.out_proj.weight.double().unflatten(1, (site.heads, -1)).transpose(0, 1)  # (H, D, K)
            norms[site] = (w_o @ w_v).flatten(1).norm(dim=1)  # (H,)
    return HeadMap(norms)
