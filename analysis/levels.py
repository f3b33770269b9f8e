"""What each width of a layer costs in loss: the exact loss of the model in which one attention has its best
n heads, or one feed-forward layer its best n neurons, and its output projection is refitted to what it gave.

The inputs z of y = W z + b have the mean m and the covariance C (site_statistics.py). With the columns S left
and G gone, the refit is the ridge regression of the layer's own output on what is left,

    W_S + W_G C_GS (C_SS + r I)^-1,   b + W m - W' m_S

with one r for all widths, so that the refit to fewer columns is that of the refit to more. Columns in the
order in which they stay make all widths from one Cholesky factor, C + r I = R R^T: what goes between two
widths hands down to the columns before it, W_S += W_G M with M = R_GS R_SS^-1. These M alone are kept, far
smaller than a weight for each width. One pass of statistics serves every width of every layer, and each width
that is looked at takes one pass of the loss. Letters: H heads of a site or neurons, K columns of each, D
model width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, Queries, batch_loss, frozen, passed, query_tokens
from headgates.analysis.scores.obs import damping
from headgates.analysis.scores.site_statistics import Projection, SiteStatistics
from headgates.gates import HeadMap, HeadSite
from headgates.gates.on_device import on_device
from headgates.gates.outputs import Output, outputs_of
from headgates.gates.site_walk import Forward, SiteWalk, rows_where
from headgates.gates.sites import device_of


def highest(scores: Tensor, count: int) -> Tensor:
    """True for so many highest of a site, (H,)."""
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    chosen[highest_first(scores)[:count]] = True
    return chosen


def highest_first(scores: Tensor) -> Tensor:
    """The numbers of a site's heads or neurons (H,), the highest first, equal ones in order."""
    return scores.argsort(descending=True, stable=True)


class HandedDown(NamedTuple):
    """What the columns that go between two widths leave to the `stay` columns before them, in the order of
    their scores. weights: M (gone, stay). means: m_G - M m_S (gone, 1), what the bias makes up for."""

    stay: int
    weights: Tensor
    means: Tensor


class Levels:
    """Every width of some layers of a model, ready to be put in place.

    order: a score of every head or neuron; the highest stay. batches: text for the statistics. forward
    (model, batch): a pass. queries: as `site_statistics`. Raises ValueError as `reconstruct` does."""

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        order: HeadMap,
        widths: Mapping[HeadSite, Sequence[int]],
        *,
        forward: Forward = passed,
        queries: Queries = query_tokens,
    ):
        self.model, self.order, self.widths = model, order, widths
        outputs = outputs_of(model, HeadMap({site: torch.zeros(site.heads).bool() for site in widths}))
        self.outputs = {site: outputs[site] for site in widths}
        self.steps = dict[HeadSite, list[HandedDown]]()
        with SiteWalk(model, forward, kinds={site.kind for site in widths}) as walk:
            for site in walk.order(batches[0]) if batches else ():
                if site in widths:
                    output = self.outputs[site]
                    statistics = SiteStatistics(site.heads, output.weight, biased=output.bias is not None)
                    for number, batch in enumerate(batches):
                        z, _, _ = walk.see(site, number, batch)
                        statistics.add(rows_where(z, output.rule, queries(model, site, batch)))
                    self.steps[site] = handed_down(statistics, self.columns(site), widths[site], output)
                walk.leave(site)

    def columns(self, site: HeadSite) -> Tensor:
        """The numbers of W_O's columns (HK,), those of the highest score first."""
        columns = torch.arange(self.outputs[site].weight.shape[1]).view(site.heads, -1)
        return columns[highest_first(self.order[site])].flatten()

    @contextmanager
    def placed(self, widths: Mapping[HeadSite, int]) -> Iterator[None]:
        """Meanwhile these sites have these widths; afterwards the weights are, bit for bit, as they were."""
        before = {site: Projection.of(self.outputs[site]) for site in widths}
        try:
            for site, units in widths.items():
                self.place(site, units)
            yield
        finally:
            for site, own in before.items():
                own.place(self.outputs[site])

    def place(self, site: HeadSite, units: int) -> None:
        """Have a projection, which is as it was, refitted to so many heads or neurons."""
        output, columns = self.outputs[site], self.columns(site)
        left = units * len(columns) // site.heads
        W = output.weight[:, columns]  # (D, HK)
        W = W.to(torch.promote_types(W.dtype, torch.float32))
        given = W.new_zeros(len(W), 1)  # what the bias makes up for
        for step in self.steps[site]:
            if step.stay < left:
                break
            W, W_gone = W[:, : step.stay], W[:, step.stay :]
            given += W_gone @ step.means.to(W)
            W.addmm_(W_gone, step.weights.to(W))
        output.weight.zero_()
        output.weight[:, columns[:left]] = W.to(output.weight)
        if output.bias is not None:
            output.bias.add_(given[:, 0].to(output.bias))


def handed_down(
    statistics: SiteStatistics, columns: Tensor, widths: Sequence[int], output: Output
) -> list[HandedDown]:
    """From width to width, from the next smaller one to all. columns: as they stay (HK,). The weights have
    the type of the output's. The statistics are used up."""
    mean, C = statistics.mean[columns, None], statistics.take()
    C.diagonal().add_(damping(C))
    R = C[columns[:, None], columns].mT  # in columns, so that nothing is copied
    del C
    torch.linalg.cholesky(R, out=R)
    found, end = list[HandedDown](), len(columns)
    for units in sorted(widths, reverse=True):
        if (stay := units * len(columns) // statistics.heads) < end:
            gone = slice(stay, end)
            M = torch.linalg.solve_triangular(R[:stay, :stay], R[gone, :stay], upper=False, left=False)
            means = mean[gone] - M @ mean[:stay]
            found.append(HandedDown(stay, M.to("cpu", output.weight.dtype), means))
            end = stay
    return found


@torch.no_grad()
def text_loss(model: nn.Module, batches: Iterable[Any], loss: Loss = batch_loss) -> float:
    """The loss of a text, summed over its units, in evaluation mode. Raises ValueError where a loss is not
    one number."""
    device, total = device_of(model), torch.zeros((), dtype=torch.float64)
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
    widths: Mapping[HeadSite, Sequence[int]],
    *,
    loss: Loss = batch_loss,
    report: Callable[[HeadSite], None] = lambda site: None,
    near: Callable[[HeadSite], AbstractContextManager[None]] = lambda site: nullcontext(),
) -> dict[tuple[HeadSite, int], float]:
    """(site, width) -> what this width of this site alone adds to the loss of a text, summed over its units.

    widths: those to look at. report: is called after each site. near: a context within which the passes of a
    site need not repeat what lies before it."""
    whole, rises = text_loss(levels.model, batches, loss), {}
    for site, own in widths.items():
        with near(site):
            for units in own:
                rises[site, units] = 0.0
                if units < site.heads:
                    with levels.placed({site: units}):
                        rises[site, units] = text_loss(levels.model, batches, loss) - whole
        report(site)
    return rises
