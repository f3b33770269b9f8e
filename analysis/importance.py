"""Gradient importance of heads.   Michel et al. 2019 (arXiv:1905.10650), section 4.1: I_h = E_x |dL(x) / dxi_h|.

L(x): sum over the target tokens of x, end of sentence included, of -log p; no label smoothing, dropout off. g_l is the gradient to xi at
query position l. Where the absolute value stands makes three different quantities:
    sentence   mean over x of |sum_l g_l|   the paper; the default
    token      sum |g_l| over non-padding query positions, divided by their number; the paper's own code
    batch      |sum over the batch|, mean over sentences: depends on the batch size, and is what later code did
"""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from data.batch import Batch
from gates import HeadMap, HeadSite, attach, detach
from models.loss import linear_cross_entropy
from models.transformer import Transformer

Absolute = Literal["sentence", "token", "batch"]


def importance(
    model: Transformer,
    batches: Iterable[Batch],
    *,
    absolute: Absolute = "sentence",
    kinds: Iterable[str] | None = None,
    closed: HeadMap | None = None,
) -> HeadMap:
    """I_h of every head of the kinds, in nats, not normalised; 0 for heads in `closed`, which stay shut.

    Raises ValueError without any batch. The model must have no gates; it is left as it was."""
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    was_training = model.training
    bank = attach(model, gate="mask", kinds=kinds)  # first: it refuses a model with gates
    model.eval()
    model.requires_grad_(False)
    totals = {site: torch.zeros(site.heads, dtype=torch.float64) for site in bank.sites}
    counts = dict.fromkeys(bank.sites, 0)
    device = model.output.weight.device
    try:
        for batch in batches:
            batch = batch.to(device)
            xi = {site: ones(site, batch, absolute, closed) for site in bank.sites}
            bank.assign(xi)
            with torch.enable_grad():
                memory, bias = model.encode(batch.source)
                hidden = model.decode(memory, bias, batch.target_in)
                loss = linear_cross_entropy(hidden, model.output.weight, batch.target_out, padding=model.target_specials.padding)
                gradients = torch.autograd.grad(loss, list(xi.values()))
            real_source = batch.source != model.source_specials.padding
            real_target = batch.target_out != model.target_specials.padding
            for site, gradient in zip(xi, gradients, strict=True):
                size = gradient.abs().double().cpu()  # (H,), (B, H) or (B, H, L)
                totals[site] += size if absolute == "batch" else size.transpose(0, 1).flatten(1).sum(1)
                # a padding query has no gradient; it is not counted either
                real = real_source if site.kind == "enc-self" else real_target
                counts[site] += int(real.sum()) if absolute == "token" else len(batch)
    finally:
        detach(model)
        for parameter in trained:
            parameter.requires_grad_(True)
        model.train(was_training)
    if not any(counts.values()):
        raise ValueError("importance needs at least one batch of sentence pairs, got none")
    scores = HeadMap({site: totals[site] / counts[site] for site in totals})
    if closed is None:
        return scores
    return HeadMap({site: row.masked_fill(closed[site], 0.0) for site, row in scores.items()})


def ones(site: HeadSite, batch: Batch, absolute: Absolute, closed: HeadMap | None) -> Tensor:
    """xi = 1 (0 at closed heads) with a gradient, in the shape that keeps what the absolute value is taken of."""
    rows, length = (batch.source if site.kind == "enc-self" else batch.target_in).shape
    row = torch.ones(site.heads, device=batch.source.device)
    if closed is not None:
        row[closed[site].to(row.device)] = 0.0
    if absolute == "batch":
        xi = row
    elif absolute == "sentence":
        xi = row.expand(rows, -1)
    else:
        xi = row[:, None].expand(rows, -1, length)
    return xi.clone().requires_grad_(True)
