"""What each head is worth on each sentence, by the loss itself: the loss without it, minus the loss with all.

    E(h, x) = L(x; xi_h = 0) - L(x), in nats, L the -log p of the sentence's target

`scores/loss_without.py` has its mean over sentences. Letters: B sentences of a batch, N of all.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import frozen, on_device, sites_of
from headgates.gates import HeadSite, attach, detach

Losses = Callable[[Any, Any], Tensor]  # (model, batch) -> (B,) nats of each sentence


@torch.no_grad()
def sentence_effects(
    model: nn.Module, batches: Iterable[Any], *, losses: Losses
) -> tuple[dict[HeadSite, Tensor], Tensor]:
    """Site -> E (H, N), float64, and the numbers (N,) of the sentences, `index` of their batches.

    Raises ValueError without any batch, and for a model that has gates."""
    device, rises, numbers = next(model.parameters()).device, list[Tensor](), list[Tensor]()
    sites = sites_of(model, None)
    with frozen(model):
        masks = attach(model, gate="mask")
        try:
            for batch in batches:
                batch = on_device(batch, device)
                whole = losses(model, batch).double()  # (B,)
                rows = []
                for site in sites:
                    for head in range(site.heads):
                        masks.assign({site: (torch.arange(site.heads) != head).float()})
                        rows.append((losses(model, batch).double() - whole).cpu())
                    masks.assign({site: torch.ones(site.heads)})
                rises.append(torch.stack(rows))  # (heads, B)
                numbers.append(batch.index.cpu())
        finally:
            detach(model)
    if not rises:
        raise ValueError("the effects need at least one batch of sentence pairs, got none")
    rows_of_sites = torch.cat(rises, dim=1).split([site.heads for site in sites])
    return dict(zip(sites, rows_of_sites, strict=True)), torch.cat(numbers)
