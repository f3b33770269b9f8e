"""Fluctuation of heads' outputs: what a mean put in their place would not keep.   FLAP: An et al. 2024
(arXiv:2312.11983), section 3.

Each channel j of W_O's input z is worth S_j = Var(z_j) |W_j|^2 (its weighted input feature variance), W_j its
column. As sites differ in scale, S is standardised within each, to mean 0 and variance 1; a head's score is
the mean of its channels. Letters: H heads, K head width, D model width.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss
from headgates.analysis.scores.site_statistics import SiteStatistics, site_statistics
from headgates.gates import HeadMap


@torch.no_grad()
def fluctuation(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    kinds: Iterable[str] | None = None,
) -> HeadMap:
    """Return the standardised fluctuation of every head of the kinds (of attention unless named): about 0 on
    average within a site, 0 where all channels are alike.

    loss (model, batch): only for its pass through the model."""
    statistics = site_statistics(model, batches, forward=loss, kinds=kinds)
    return HeadMap(
        {
            site: standardised(channels(each)).unflatten(0, (site.heads, -1)).mean(1)
            for site, each in statistics.items()
        }
    )


def channels(statistics: SiteStatistics) -> Tensor:
    """(HK,) the sample variance of every channel, times the squared norm of its column of W_O."""
    correction = statistics.count / max(1, statistics.count - 1)
    variance = statistics.covariance.diagonal().clamp_min(0) * correction
    return variance * statistics.weight.square().sum(0)


def standardised(values: Tensor) -> Tensor:
    """(values - mean) / standard deviation; 0 where they are all alike."""
    centred = values - values.mean()
    deviation = values.std()
    return centred / deviation if deviation > 0 else torch.zeros_like(values)
