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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, batch_loss, frozen, on_device, sites_of
from headgates.analysis.scores.site_statistics import SiteStatistics, site_statistics
from headgates.gates import HeadMap, HeadSite
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import plain_projection

RIDGE = 1e-3  # times the mean of C's diagonal


@dataclass(frozen=True)
class RefittedProjection:
    """The output projection of a site with `units` heads or neurons: weight (D, H * K), 0 at the others;
    bias (D,), None where the projection has none."""

    units: int
    weight: Tensor
    bias: Tensor | None


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
        kinds = list(dict.fromkeys(site.kind for site in widths))
        self.model, self.order, self.widths = model, order, widths
        modules = sites_of(model, kinds)
        self.outs = {
            site: (plain_projection(modules[site], rule_of(modules[site]).out), modules[site])
            for site in widths
        }
        statistics = site_statistics(model, batches, kinds=kinds, **reading)
        self.refits = {
            (site, units): self.refit(site, units, statistics[site])
            for site, own in widths.items()
            for units in own
        }

    def refit(self, site: HeadSite, units: int, statistics: SiteStatistics) -> RefittedProjection:
        out, _ = self.outs[site]
        bias: Tensor | None = out.bias
        W = statistics.weight
        stays = highest(self.order[site], units).repeat_interleave(W.shape[1] // site.heads)
        C = statistics.gram if bias is None else statistics.covariance
        weight = torch.zeros_like(W)
        if units:
            own, gone = C[stays][:, stays], C[~stays][:, stays]
            ridge = RIDGE * own.diagonal().mean().clamp_min(1e-12) * torch.eye(len(own), dtype=own.dtype)
            weight[:, stays] = W[:, stays] + W[:, ~stays] @ torch.linalg.solve(own + ridge, gone.T).T
        if bias is not None:
            bias = bias.detach().double().cpu() + (W - weight) @ statistics.mean
        return RefittedProjection(units, weight, bias)

    @contextmanager
    def placed(self, widths: Mapping[HeadSite, int]) -> Iterator[None]:
        """Meanwhile these sites have these widths; afterwards the weights are, bit for bit, as they were."""
        before: list[tuple[Any, Tensor, Tensor | None]] = []
        for out, _ in (self.outs[site] for site in widths):
            old = None if out.bias is None else out.bias.detach().clone()
            before.append((out, out.weight.detach().clone(), old))
        try:
            with torch.no_grad():
                for site, units in widths.items():
                    (out, module), new = self.outs[site], self.refits[site, units]
                    weight = new.weight.T if rule_of(module).transposed else new.weight
                    out.weight.copy_(weight)
                    if new.bias is not None:
                        out.bias.copy_(new.bias)
            yield
        finally:
            with torch.no_grad():
                for out, weight, bias in before:
                    out.weight.copy_(weight)
                    if bias is not None:
                        out.bias.copy_(bias)


@torch.no_grad()
def text_loss(model: nn.Module, batches: Iterable[Any], loss: Loss = batch_loss) -> float:
    """The loss of a text, summed over its units, in evaluation mode."""
    device = next(model.parameters()).device
    with frozen(model):
        return float(sum(loss(model, on_device(batch, device)).double() for batch in batches))


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
