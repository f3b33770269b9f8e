"""What each head is worth by the loss itself: the loss without it, minus the loss with all heads.

    E_x[L(x; xi_h = 0) - L(x)], in nats a sentence

Importance (importance.py) estimates its size from the gradient at xi_h = 1; here every head costs a pass over
the text. Below 0 the model is better without the head.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from headgates.analysis.batches import (
    Loss,
    Queries,
    batch_loss,
    frozen,
    on_device,
    query_tokens,
    shared,
    sites_of,
    summed,
)
from headgates.gates import HeadMap, attach, detach
from headgates.gates.gram import Ranks


@torch.no_grad()
def loss_without(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss = batch_loss,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return the mean rise of the loss of every head closed alone, in nats a sentence.

    Arguments are those of `head_gradients`. Raises ValueError without any batch, and for a model that has
    gates."""
    device, sites = next(model.parameters()).device, sites_of(model, None)
    sums = {site: torch.zeros(site.heads, dtype=torch.float64) for site in sites}
    sentences = torch.tensor(0)
    with frozen(model):
        masks = attach(model, gate="mask")
        try:
            for batch in shared(batches, ranks):
                batch = on_device(batch, device)
                whole = loss(model, batch).double()
                for site, rises in sums.items():
                    for head in range(site.heads):
                        masks.assign({site: (torch.arange(site.heads) != head).float()})
                        rises[head] += (loss(model, batch).double() - whole).cpu()
                    masks.assign({site: torch.ones(site.heads)})
                sentences += len(queries(model, next(iter(sites)), batch))
        finally:
            detach(model)
    if not (sentences := summed(sentences, ranks)):
        raise ValueError("the loss needs at least one batch of sentence pairs, got none")
    return HeadMap({site: summed(rises, ranks) / sentences for site, rises in sums.items()})
