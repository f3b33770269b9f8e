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
from typing import Any, get_args

from torch import nn

from headgates.analysis.batches import Loss, Queries, batch_loss, query_tokens
from headgates.analysis.gate_gradients import Per, gradient_means
from headgates.gates import HeadMap
from headgates.gates.gram import Ranks
from headgates.gates.names import check_name


def importance(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    absolute: Per = "sentence",
    loss: Loss = batch_loss,
    kinds: Iterable[str] | None = None,
    closed: HeadMap | None = None,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return the paper's score, in [0, 1]: the raw importance of every head, divided by the l2 norm of its
    layer's; 0 where the whole layer has none. Arguments and errors are those of `raw_importance`."""
    raw = raw_importance(
        model,
        batches,
        absolute=absolute,
        loss=loss,
        kinds=kinds,
        closed=closed,
        queries=queries,
        ranks=ranks,
    )
    return raw.l2_per_layer()


def raw_importance(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    absolute: Per = "sentence",
    loss: Loss = batch_loss,
    kinds: Iterable[str] | None = None,
    closed: HeadMap | None = None,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return I_h of every head of the kinds, in nats, not normalised; 0 for heads in `closed`, which stay
    closed.

    absolute: of what the absolute value is taken. Other arguments and errors are those of `gradient_means`.
    Raises ValueError at an unknown `absolute`."""
    check_name("absolute", absolute, get_args(Per))
    means = gradient_means(
        model,
        batches,
        lambda gradients: gradients.abs().sum(0),
        per=absolute,
        loss=loss,
        kinds=kinds,
        closed=closed,
        queries=queries,
        ranks=ranks,
    )
    return HeadMap(means)
