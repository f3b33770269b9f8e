"""What each width of a layer costs in loss: the exact loss of the model in which one attention has its best
n heads, or one feed-forward layer its best n neurons, and its output projection is refitted to what it gave.

The inputs z of y = W z + b have the mean m and the covariance C (site_statistics.py). With the columns S left
and G gone, the refit is the ridge regression of the layer's own output on what is left,

    W_S + W_G C_GS (C_SS + r I)^-1,   b + W m - W' m_S

so one pass of statistics serves every width of every layer, and each width takes one pass of the loss.
Letters: H heads of a site or neurons, D model width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, batch_loss, frozen
from headgates.analysis.scores.site_statistics import Projection, SiteStatistics, one_by_one
from headgates.gates import HeadMap, HeadSite
from headgates.gates.on_device import on_device
from headgates.gates.outputs import outputs_of

RIDGE = 1e-3  # times the mean of C's diagonal


def highest(scores: Tensor, count: int) -> Tensor:
    """True for so many highest of a site, (H,)."""
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    chosen[scores.argsort(descending=True, stable=True)[:count]] = True
    return chosen


class Levels:
    """Every width of some layers of a model, ready to be put in place.

    order: a score of every head or neuron; the highest stay. batches: text for the statistics; forward and
    queries as `site_statistics`. Raises ValueError where the order lacks a site."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        order: HeadMap,
        widths: Mapping[HeadSite, Sequence[int]],
        **reading: Any,
    ):
        self.model, self.order, self.widths = model, order, widths
        outputs = outputs_of(model, HeadMap({site: torch.zeros(site.heads).bool() for site in widths}))
        self.outputs = {site: outputs[site] for site in widths}
        self.refits = dict[tuple[HeadSite, int], Projection]()
        for site, statistics in one_by_one(model, batches, sites=widths, **reading):
            weight, bias = self.outputs[site].weight, self.outputs[site].bias
            for units in widths[site]:
                found = refitted(statistics, highest(order[site], units), bias)
                self.refits[site, units] = found.rounded(weight.dtype)

    @contextmanager
    def placed(self, widths: Mapping[HeadSite, int]) -> Iterator[None]:
        """Meanwhile these sites have these widths; afterwards the weights are, bit for bit, as they were."""
        before = {site: Projection.of(self.outputs[site]) for site in widths}
        try:
            for site, units in widths.items():
                self.refits[site, units].place(self.outputs[site])
            yield
        finally:
            for site, own in before.items():
                own.place(self.outputs[site])


def refitted(statistics: SiteStatistics, stays: Tensor, bias: Tensor | None) -> Projection:
    """The refit to the heads or neurons that stay (H,), with RIDGE of their mean diagonal."""
    diagonal = statistics.moments(bias).diagonal()[statistics.columns(stays)]
    return statistics.refit(stays, bias, RIDGE * diagonal.mean().clamp_min(1e-12))


@torch.no_grad()
def text_loss(model: nn.Module, batches: Iterable[Any], loss: Loss = batch_loss) -> float:
    """The loss of a text, summed over its units, in evaluation mode. Raises ValueError where a loss is not
    one number."""
    device, total = next(model.parameters()).device, torch.zeros((), dtype=torch.float64)
    with frozen(model):
        for batch in batches:
            own = loss(model, on_device(batch, device))
            if not isinstance(own, Tensor) or own.numel() != 1:
                came = tuple(own.shape) if isinstance(own, Tensor) else f"a {type(own).__name__}"
                raise ValueError(f"loss: expected a tensor of one number for a batch, got {came}")
            total = total.to(own.device) + own.double().squeeze()
    return float(total)


def level_losses(
    levels: Levels,
    batches: Sequence[Any],
    *,
    loss: Loss = batch_loss,
    report: Callable[[HeadSite], None] = lambda site: None,
    near: Callable[[HeadSite], AbstractContextManager[None]] = lambda site: nullcontext(),
) -> dict[tuple[HeadSite, int], float]:
    """(site, width) -> what this width of this site alone adds to the loss of a text, summed over its units.

    report: is called after each site. near: a context within which the passes of a site need not repeat what
    lies before it."""
    whole, rises = text_loss(levels.model, batches, loss), {}
    for site, own in levels.widths.items():
        with near(site):
            for units in own:
                rises[site, units] = 0.0
                if units < site.heads:
                    with levels.placed({site: units}):
                        rises[site, units] = text_loss(levels.model, batches, loss) - whole
        report(site)
    return rises
