"""Second moments of what flows through every attention's output projection: of its inputs z, and of the
loss's gradients at its output y.

    G = E[z z^T]  (HK, HK)      mean = E[z]  (HK,)      F = E[g g^T]  (D, D),  g = dL/dy      W  (D, HK), the
    weight of y = W z + b

E is the mean over N query positions that are not padding; L is the loss summed over units, so that g belongs
to its own position's y. Batches are forgotten as they come: memory depends on the sizes of the model alone.
All sums are float64. Letters: H heads, K head width, D model width, N positions, B sentences, L query
positions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, Queries, on_device, query_tokens
from headgates.gates import HeadSite, find_sites
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.headmap import check_kinds
from headgates.gates.hold import plain_projection
from headgates.gates.rules import rule_of


@dataclass
class SiteStatistics:
    """The sums at one site, and the means made of them. On the CPU, float64."""

    heads: int
    weight: Tensor  # (D, HK)
    count: int = 0  # N
    inputs: Tensor = field(default_factory=lambda: torch.zeros(0))  # (HK,) sum of z
    products: Tensor = field(default_factory=lambda: torch.zeros(0))  # (HK, HK) sum of z z^T
    gradients: Tensor = field(
        default_factory=lambda: torch.zeros(0)
    )  # (D, D) sum of g g^T; 0 where no loss was given

    def __post_init__(self) -> None:
        width, columns = self.weight.shape
        self.weight = self.weight.detach().double().cpu()
        self.inputs, self.products, self.gradients = (
            torch.zeros(s, dtype=torch.float64) for s in (columns, (columns,) * 2, (width,) * 2)
        )

    def add(self, z: Tensor, g: Tensor | None) -> None:
        """Add positions: z (n, HK), g (n, D) or None."""
        z = z.detach().double()
        self.count += len(z)
        self.inputs += z.sum(0).cpu()
        self.products += (z.T @ z).cpu()
        if g is not None:
            g = g.double()
            self.gradients += (g.T @ g).cpu()

    @property
    def mean(self) -> Tensor:
        return self.inputs / self.count

    @property
    def gram(self) -> Tensor:
        return self.products / self.count

    @property
    def covariance(self) -> Tensor:
        """(HK, HK), E[z z^T] - E[z] E[z]^T."""
        return self.gram - torch.outer(self.mean, self.mean)

    @property
    def fisher(self) -> Tensor:
        return self.gradients / self.count


def site_statistics(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    kinds: Iterable[str] | None = None,
    queries: Queries = query_tokens,
) -> dict[HeadSite, SiteStatistics]:
    """Return the statistics of every site with heads, in evaluation mode.

    loss (model, batch): summed over the batch's units; its gradients make F. forward (model, batch): a pass
    without a loss instead, where F is not needed. queries: as for `importance`. The model is left as it was,
    and its gates, if any, do not count: z is what W_O reads. Raises ValueError without any batch, or where an
    attention does not call its
    output projection."""
    chosen = check_kinds(kinds)
    modules = {
        site: module for site, module in find_sites(model).items() if site.kind in chosen and site.heads
    }
    projections = {site: plain_projection(module, rule_of(module).out) for site, module in modules.items()}
    sums = {}
    for site, module in modules.items():
        weight = projections[site].weight
        sums[site] = SiteStatistics(site.heads, weight.T if rule_of(module).transposed else weight)
    device = next(model.parameters()).device
    seen: dict[HeadSite, tuple[Tensor, Tensor]] = {}  # z and a zero that is added to y, whose gradient is g

    def watch(site: HeadSite) -> Callable[..., Tensor]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            probe = torch.zeros_like(output).requires_grad_(loss is not None)
            seen[site] = inputs[0].detach(), probe
            return output + probe

        return hook

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handles = [projection.register_forward_hook(watch(site)) for site, projection in projections.items()]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        with evaluation_mode(model):
            for batch in batches:
                batch = on_device(batch, device)
                with torch.set_grad_enabled(loss is not None):
                    value = loss(model, batch) if loss is not None else (forward or loss_free)(model, batch)
                if missing := [site.name for site in modules if site not in seen]:
                    raise ValueError(
                        f"{missing[0]}: its forward does not call its output projection, so what that reads "
                        "cannot be seen"
                    )
                probes = [seen[site][1] for site in modules]
                gradients = (
                    torch.autograd.grad(value, probes, allow_unused=True)
                    if loss is not None
                    else [None] * len(probes)
                )
                for (site, module), g in zip(modules.items(), gradients, strict=True):
                    real = queries(model, site, batch)  # (B, L)
                    z = seen.pop(site)[0]
                    if rule_of(module).batch_axis == 1:
                        real = real.T
                    sums[site].add(z[real], None if g is None else g[real])
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
    if not all(each.count for each in sums.values()):
        raise ValueError("statistics of attention outputs need at least one batch of sentences, got none")
    return sums


def loss_free(model: Any, batch: Any) -> Any:
    """A pass through the model for a batch of either kind that batches.py knows."""
    return model(**batch) if isinstance(batch, Mapping) else model(batch.source, batch.target_in)
