"""How much a head can write, from its weights alone: the Frobenius norm of W_O^h W_V^h.   The cheapest score:
no data, no gradient.

The head's output is z_h W_O^h, and z_h is a mean of value vectors W_V^h x + b_V^h; so |W_O^h W_V^h|_F bounds
how much its output changes with its input. The attention pattern and the bias are left out. Letters: H heads,
K head width, D model width.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.gates import HeadMap, find_sites
from headgates.gates.called import called
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import heads_per_key, plain_projection, rows_of
from headgates.gates.sites import warn_of_neurons


@torch.no_grad()
def weight_norm(
    model: nn.Module, batches: Iterable[Any] = (), *, kinds: Iterable[str] | None = None
) -> HeadMap:
    """Return |W_O^h W_V^h|_F of every head of the kinds (of attention unless named), at least 0, in fp64; of
    a neuron with the last of the weights before it in the place of W_V.

    A gate on the head does not change it, and the batches are not read. Raises ValueError at an attention
    whose rule leads to no plain projection of values."""
    del batches
    warn_of_neurons(model, kinds)
    with called(model):
        sites = find_sites(model, kinds)
        return HeadMap({site: norms_of(module, site.heads) for site, module in sites.items() if site.heads})


def norms_of(module: nn.Module, heads: int) -> Tensor:
    """(H,) of one attention or feed-forward layer."""
    rule = rule_of(module)
    w_v = weight_at(module, rule.values)
    w_o = weight_at(module, rule.out).unflatten(1, (heads, -1)).transpose(0, 1)  # (H, D, K)
    rows = rows_of(module, rule, rule.values, heads, rows=len(w_v), width=w_o.shape[2])
    of_values = [row for row, (part, _) in enumerate(rows) if part == "v"]
    w_v = w_v[of_values].unflatten(0, (-1, w_o.shape[2]))
    w_v = w_v[-(heads // heads_per_key(module, rule)) :]  # behind those of gates
    w_v = w_v.repeat_interleave(heads_per_key(module, rule), 0)  # (H, K, D)
    # |A B|^2 = tr(A^T A B B^T), of (K, K) in place of (D, D) a head
    both = (w_o.mT @ w_o) * (w_v @ w_v.mT)
    return both.sum((1, 2)).clamp_min(0).sqrt()


def weight_at(attention: nn.Module, path: str) -> Tensor:
    """The weight (outputs, inputs) of a projection, in fp64, whichever way it lies."""
    weight = plain_projection(attention, path).weight.double()
    return weight.t() if rule_of(attention).transposed else weight
