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
    query_tokens,
    sentence_means,
    shared,
    sites_of,
)
from headgates.analysis.without_heads import all_heads, closing, values_without
from headgates.gates import HeadMap
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
    alone = [closing([head]) for head in all_heads(model)]
    rises = loss_rises(model, batches, alone, loss=loss, queries=queries, ranks=ranks)
    return closing(all_heads(model)).like(rises)


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
    are those of `gradient_means`. Raises ValueError without any batch, and for a model that has gates."""
    site = next(iter(sites_of(model, None)))
    rises, sentences = torch.zeros(len(closings), dtype=torch.float64), 0
    for batch, losses in values_without(model, shared(batches, ranks), [HeadMap({}), *closings], loss):
        rises += losses[1:] - losses[0]
        sentences += len(queries(model, site, batch))
    return sentence_means({site: rises}, {site: sentences}, ranks)[site]
