"""Gradient importance of heads.   Michel et al. 2019 (arXiv:1905.10650), section 4.1: I_h = E_x |dL(x) /
dxi_h|.

L(x): sum over the target tokens of x, end of sentence included, of -log p; no label smoothing, dropout off.
g_l is the gradient to xi at query position l. Where the absolute value stands makes three different
quantities:
    sentence   mean over x of |sum_l g_l|   the paper; the default
    token      sum |g_l| over non-padding query positions, divided by their number; the paper's own code
    batch      |sum over the batch|, mean over sentences: depends on the batch size, and is what later code
    did
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from headgates.analysis.batches import Loss, Queries, batch_loss, on_device, query_tokens, shared, summed
from headgates.analysis.gate_gradients import Per, head_factors
from headgates.gates import HeadMap
from headgates.gates.gram import Ranks


def importance(
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

    loss (model, batch): a sum over the batch's sentences, of which none may depend on another. queries
    (model, site, batch): (B, L) bool, True at positions that are not padding. Of both, batches.py has the
    default. ranks: processes that share the batches out and add up. Raises ValueError without any batch. The
    model must have no gates; it is left as it was."""
    device = next(model.parameters()).device
    with head_factors(model, kinds=kinds, closed=closed) as factors:
        totals = {site: torch.zeros(site.heads, dtype=torch.float64) for site in factors.sites}
        counts = dict.fromkeys(factors.sites, 0)
        for batch in shared(batches, ranks):
            batch = on_device(batch, device)
            factors.renew(batch, per=absolute, queries=queries)
            with torch.enable_grad():
                value = loss(model, batch)
            for site, gradient in factors.gradients(value).items():
                size = gradient.abs().double().cpu()  # (H,), (B, H) or (B, H, L)
                totals[site] += size if absolute == "batch" else size.transpose(0, 1).flatten(1).sum(1)
                # a padding query has no gradient; it is not counted either
                real = queries(model, site, batch)
                counts[site] += int(real.sum()) if absolute == "token" else len(real)
    totals = {site: summed(total, ranks) for site, total in totals.items()}
    counts = {site: int(summed(torch.tensor(count), ranks)) for site, count in counts.items()}
    if not any(counts.values()):
        raise ValueError("importance needs at least one batch of sentence pairs, got none")
    return HeadMap({site: totals[site] / counts[site] for site in totals})
