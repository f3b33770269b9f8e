"""Gradient importance of heads.   Michel et al. 2019 (arXiv:1905.10650), section 4.1: I_h = E_x |dL(x) /
dxi_h|, then divided by the l2 norm within each layer. `importance` is that score, `raw_importance` the one
before the division, which closes other heads: it may empty layers whose gradients are small.

L(x): sum over the target tokens of x, end of sentence included, of -log p; no label smoothing, dropout off.
g_l is the gradient to xi at query position l. Where the absolute value stands makes three different
quantities:
    sentence   mean over x of |sum_l g_l|   the paper; the default
    token      sum |g_l| over non-padding query positions, divided by their number; the paper's own code
    batch      |sum over the batch|, mean over sentences: depends on the batch size; what later code did
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from headgates.analysis.batches import Loss, Queries, batch_loss, query_tokens, sites_of, summed
from headgates.analysis.gate_gradients import Per, head_gradients
from headgates.gates import HeadMap
from headgates.gates.gram import Ranks


def importance(model: nn.Module, batches: Iterable[Any], **reading: Any) -> HeadMap:
    """Return the paper's score, in [0, 1]: the raw importance of every head, divided by the l2 norm of its
    layer's; 0 where the whole layer has none. Arguments and errors are those of `raw_importance`."""
    return raw_importance(model, batches, **reading).l2_per_layer()


def raw_importance(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    absolute: Per = "sentence",
    kinds: Iterable[str] | None = None,
    closed: HeadMap | None = None,
    loss: Loss = batch_loss,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return I_h of every head of the kinds, in nats, not normalised; 0 for heads in `closed`, which stay
    shut.

    Arguments and errors are those of `head_gradients`. Raises ValueError without any batch."""
    # (H + 1,): of sizes, and how many they are of
    sums = {site: torch.zeros(site.heads + 1, dtype=torch.float64) for site in sites_of(model, kinds)}
    passes = head_gradients(
        model, batches, per=absolute, loss=loss, kinds=kinds, closed=closed, queries=queries, ranks=ranks
    )
    for batch, gradients in passes:
        for site, gradient in gradients.items():
            size = gradient.abs().double()  # (H,), (B, H) or (B, H, L)
            total = size if absolute == "batch" else size.transpose(0, 1).flatten(1).sum(1)
            # a padding query has no gradient; it is not counted either
            real = queries(model, site, batch)
            count = real.sum() if absolute == "token" else len(real)
            sums[site] += torch.cat([total, total.new_tensor([count])]).cpu()
    sums = {site: summed(each, ranks) for site, each in sums.items()}
    if not all(each[-1] for each in sums.values()):
        raise ValueError("importance needs at least one batch of sentence pairs, got none")
    return HeadMap({site: each[:-1] / each[-1] for site, each in sums.items()})
