"""What each head is worth by the loss itself: the loss without it, minus the loss with all heads.

    E_x[L(x; xi_h = 0) - L(x)], in nats a sentence

Importance (importance.py) estimates its size from the gradient at xi_h = 1; here every head costs a pass over
the text. Below 0 the model is better without the head.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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


def exact_effects(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss = batch_loss,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return the mean rise of the loss of every head closed alone, in nats a sentence.

    Arguments and errors are those of `loss_rises`."""
    sites = sites_of(model, None)
    alone = [
        HeadMap({site: torch.arange(site.heads) == head}) for site in sites for head in range(site.heads)
    ]
    rises = loss_rises(model, batches, alone, loss=loss, queries=queries, ranks=ranks)
    rows = rises.split([site.heads for site in sites])
    return HeadMap(dict(zip(sites, rows, strict=True)))


@torch.no_grad()
def loss_rises(
    model: nn.Module,
    batches: Iterable[Any],
    closings: Sequence[HeadMap],
    *,
    loss: Loss = batch_loss,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> Tensor:
    """Return the mean rise of the loss under each of the closings, (closings,) in nats a sentence, float64.

    closings: bool, True for heads whose output is 0; sites that one does not name stay open. Other arguments
    are those of `head_gradients`. Raises ValueError without any batch, and for a model that has gates."""
    device, site = next(model.parameters()).device, next(iter(sites_of(model, None)))
    rises, sentences = torch.zeros(len(closings), dtype=torch.float64), torch.tensor(0)
    with frozen(model):
        masks = attach(model, gate="mask")
        try:
            for batch in shared(batches, ranks):
                batch = on_device(batch, device)
                whole = loss(model, batch).double()
                for number, closed in enumerate(closings):
                    masks.assign({each: (~row).float() for each, row in closed.items()})
                    rises[number] += (loss(model, batch).double() - whole).cpu()
                    masks.assign({each: torch.ones(each.heads) for each in closed})
                sentences += len(queries(model, site, batch))
        finally:
            detach(model)
    if not (sentences := summed(sentences, ranks)):
        raise ValueError("the loss needs at least one batch of sentence pairs, got none")
    return summed(rises, ranks) / sentences
