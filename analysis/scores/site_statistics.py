"""Second moments of what flows through every attention's output projection: of its inputs z, and of the
loss's gradients at its output y.

    G = E[z z^T]  (HK, HK)      mean = E[z]  (HK,)      F = E[g g^T]  (D, D),  g = dL/dy      W  (D, HK), the
    weight of y = W z + b

E is the mean over N query positions that are not padding; L is the loss summed over units, so that g belongs
to its own position's y. Batches are forgotten as they come: memory depends on the sizes of the model alone.
The float64 sums of a whole model can be many times as large as the model, so `one_by_one` makes those of a
few sites at a time, together at most half as large as the model, or 128 MB. Letters: H heads, K head width,
D model width, N positions, B sentences, L query positions.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, Queries, frozen, passed, query_tokens, sites_of
from headgates.gates import ALL_KINDS, HeadSite
from headgates.gates.called import called
from headgates.gates.on_device import on_device
from headgates.gates.outputs import Output
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import plain_projection
from headgates.gates.site_walk import rows_where
from headgates.gates.sites import device_of, warn_of_neurons

BYTES_AT_ONCE = 2**30  # of all sums that share a pass over the text, at most
SHARE_AT_ONCE = 0.5  # and so many of the model's bytes, but for those of one site
FEW_BYTES = 2**27  # sums may always take this much: with 13 million parameters two passes in place of seven


class Projection(NamedTuple):
    """The weight (D, HK) and bias (D,) of an output projection; None where it has none."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, output: Output) -> "Projection":
        """A copy of what the output has now."""
        return cls(output.weight.clone(), None if output.bias is None else output.bias.clone())

    def place(self, output: Output) -> None:
        """Put it into the model."""
        output.weight.copy_(self.weight)
        if self.bias is not None and output.bias is not None:
            output.bias.copy_(self.bias)


class SiteStatistics:
    """The sums at one site of weight (D, HK), and the means made of them; biased: whether its output has a
    bias. On the CPU, float64."""

    def __init__(self, heads: int, weight: Tensor, *, biased: bool = True):
        width, columns = weight.shape
        self.biased = biased
        self.heads, self.weight = heads, weight.detach().double().cpu()
        self.count = 0  # N
        self.inputs = self.weight.new_zeros(columns)  # sum of z
        self.products = self.weight.new_zeros(columns, columns)  # sum of z z^T
        self.gradients = self.weight.new_zeros(width, width)  # sum of g g^T; 0 where no loss was given

    def add(self, z: Tensor, g: Tensor | None = None) -> None:
        """Add positions: z (n, HK), g (n, D)."""
        self.count += len(z)
        self.inputs += z.double().sum(0).cpu()
        add_products(self.products, z)
        if g is not None:
            add_products(self.gradients, g)

    @property
    def mean(self) -> Tensor:
        return self.inputs / self.count

    @property
    def gram(self) -> Tensor:
        return self.products / self.count

    @property
    def covariance(self) -> Tensor:
        """(HK, HK), E[z z^T] - E[z] E[z]^T."""
        return self.gram.addr_(self.mean, self.mean, alpha=-1)

    def moments(self, bias: Tensor | None) -> Tensor:
        """(HK, HK), those that count for a refit: with a bias it makes up for the mean."""
        return self.gram if bias is None else self.covariance

    def take(self) -> Tensor:
        """(HK, HK), `covariance`, or `gram` without a bias, in the memory of its sums, which are lost: of a
        layer's neurons each such matrix is a large one."""
        found, self.products = self.products.div_(self.count), self.products[:0]
        return found.addr_(self.mean, self.mean, alpha=-1) if self.biased else found

    def columns(self, heads: Tensor) -> Tensor:
        """(HK,) bool, True for the inputs of these heads (H,)."""
        return heads.repeat_interleave(self.weight.shape[1] // self.heads)

    def refit(self, heads: Tensor, bias: Tensor | None, ridge: Tensor) -> Projection:
        """The projection of least squared error towards the site's own output, with the weights' distance
        from W as a ridge, where only these heads (H,) are read.

        bias: the one that the site has. ridge: a number, added to the diagonal of the moments."""
        W, C, reads = self.weight, self.moments(bias), self.columns(heads)
        weight = torch.zeros_like(W)
        own, gone = C[reads][:, reads], C[~reads][:, reads]
        damped = own + ridge * torch.eye(len(own), dtype=own.dtype)
        weight[:, reads] = W[:, reads] + W[:, ~reads] @ torch.linalg.solve(damped, gone.T).T
        if bias is not None:  # the means of both outputs are the same
            bias = bias.detach().double().cpu() + (W - weight) @ self.mean
        return Projection(weight, bias)

    @property
    def fisher(self) -> Tensor:
        return self.gradients / self.count


def add_products(sums: Tensor, rows: Tensor) -> None:
    """sums += rows^T rows, in float64; on one device without a second matrix of that size."""
    rows = rows.double()
    if rows.device == sums.device:
        sums.addmm_(rows.T, rows)
    else:
        sums += (rows.T @ rows).to(sums.device)


def site_statistics(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    kinds: Iterable[str] | None = None,
    sites: Collection[HeadSite] | None = None,
    queries: Queries = query_tokens,
) -> dict[HeadSite, SiteStatistics]:
    """Return the statistics of every site with heads, or of these sites, in evaluation mode.

    loss (model, batch): summed over the batch's units; its gradients make F. forward (model, batch): a pass
    without a loss instead, where F is not needed. queries: as for `importance`, or None for all. The model is
    left as it was, and its gates, if any, do not count: z is what W_O reads. Raises ValueError without any
    batch, or where an attention does not call its output projection."""
    modules = sites_of(model, kinds)
    if sites is None:
        warn_of_neurons(model, kinds)
    else:
        modules = {site: modules[site] for site in sites}
    sums: dict[HeadSite, SiteStatistics] = {}
    # of each call, z and a zero that is added to y, whose gradient is g
    seen: dict[HeadSite, list[tuple[Tensor, Tensor]]] = {}

    def hook(site: HeadSite, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        probe = torch.zeros_like(output).requires_grad_(loss is not None)
        seen.setdefault(site, []).append((inputs[0].detach(), probe))
        return output + probe

    device = device_of(model)
    with called(model), ExitStack() as after:
        for site, module in modules.items():
            out, rule = plain_projection(module, rule_of(module).out), rule_of(module)
            weight = out.weight.T if rule.transposed else out.weight
            sums[site] = SiteStatistics(site.heads, weight, biased=out.bias is not None)
            after.callback(out.register_forward_hook(partial(hook, site)).remove)
        after.enter_context(frozen(model))
        after.enter_context(torch.set_grad_enabled(loss is not None))
        for batch in batches:
            batch = on_device(batch, device)
            value = (loss or forward or passed)(model, batch)
            if missing := [site.name for site in modules if site not in seen]:
                raise ValueError(
                    f"{missing[0]}: its forward does not call its output projection, so what that reads "
                    "cannot be seen"
                )
            calls = [(site, z, probe) for site, own in seen.items() for z, probe in own]
            gradients = [probe for *_, probe in calls]  # 0 where there is no loss
            if loss is not None:
                gradients = list(
                    torch.autograd.grad(value, gradients, allow_unused=True, materialize_grads=True)
                )
            for (site, z, _), g in zip(calls, gradients, strict=True):
                rule, real = rule_of(modules[site]), queries(model, site, batch)  # (B, L)
                sums[site].add(rows_where(z, rule, real), rows_where(g, rule, real))
            seen.clear()
    if not all(each.count for each in sums.values()):
        raise ValueError("statistics of attention outputs need at least one batch of sentences, got none")
    return sums


def one_by_one(
    model: nn.Module, batches: Iterable[Any], *, sites: Iterable[HeadSite], **reading: Any
) -> Iterator[tuple[HeadSite, SiteStatistics]]:
    """Each of these sites with its statistics, which no one else keeps: as many sites share a pass over the
    batches as the bytes above allow. reading: as `site_statistics`."""
    modules, groups, full = sites_of(model, ALL_KINDS), [list[HeadSite]()], 0
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    most = min(BYTES_AT_ONCE, max(FEW_BYTES, SHARE_AT_ONCE * size))
    for site in sites:
        outputs, inputs = plain_projection(modules[site], rule_of(modules[site]).out).weight.shape
        needed = 8 * (outputs**2 + inputs**2 + outputs * inputs)  # float64
        if groups[-1] and full + needed > most:
            groups.append([])
            full = 0
        groups[-1].append(site)
        full += needed
    text = batches if len(groups) == 1 else [*batches]
    for group in groups:
        found = site_statistics(model, text, kinds=ALL_KINDS, sites=group, **reading)
        for site in group:
            yield site, found.pop(site)
