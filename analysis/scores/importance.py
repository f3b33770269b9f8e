"""Gradient importance of heads.   Michel et al. 2019 (arXiv:1905.10650), section 4.1: I_h = E_x |dL(x) /
dxi_h|, then divided by the l2 norm within each layer. `importance` is that score, `raw_importance` the one
before the division, which closes other heads: it may empty layers whose gradients are small.

L(x): sum over the target tokens of x, end of sentence included, of -log p; no label smoothing, dropout off.
The absolute value is that of a whole sentence. Of each token, as in the paper's own code, or of each batch,
as in later code, it is another quantity.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from headgates.analysis.gate_gradients import gradient_means
from headgates.gates import HeadMap


def importance(model: nn.Module, batches: Iterable[Any], **reading: Any) -> HeadMap:
    """Return the paper's score, in [0, 1]: the raw importance of every head, divided by the l2 norm of its
    layer's; 0 where the whole layer has none. Arguments and errors are those of `raw_importance`."""
    return raw_importance(model, batches, **reading).l2_per_layer()


def raw_importance(model: nn.Module, batches: Iterable[Any], **reading: Any) -> HeadMap:
    """Return I_h of every head of the kinds, in nats, not normalised; 0 for heads in `closed`, which stay
    closed. Arguments and errors are those of `gradient_means`."""
    return HeadMap(gradient_means(model, batches, lambda gradients: gradients.abs().sum(0), **reading))
