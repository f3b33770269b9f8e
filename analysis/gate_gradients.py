"""Gradients to the gate of every head, from which importance and relevance are computed; for any model in
which `find_sites` finds heads.

The output of every head is multiplied by a factor of 1 (beside the head's own gate, if it has one): one
number for the batch, for each sentence or for each query position. The gradients of any function of (model,
batch) to these factors are then taken, at 1 or at any other point:

    with head_factors(model) as factors:
        for batch in batches:
            factors.renew(batch, per="sentence")
            dL = factors.gradients(loss(model, batch))   # site -> (B, H)

Letters: C rows of cotangents, B sentences, H heads, L query positions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headgates.analysis.batches import (
    Loss,
    Queries,
    batch_loss,
    frozen,
    query_tokens,
    sentence_means,
    shared,
    sites_of,
)
from headgates.gates import HeadGate, HeadMap, HeadSite, attach, detach, reattach
from headgates.gates.called import called
from headgates.gates.gram import Ranks
from headgates.gates.headmap import check_kinds
from headgates.gates.on_device import on_device
from headgates.gates.remove import kinds_with
from headgates.gates.site_rule import check_here
from headgates.gates.sites import BANK, device_of

Per = Literal["sentence", "token", "batch"]


class HeadFactors:
    """Factors on the outputs of the heads of `sites`; made by `head_factors`.

    masks: the gates on the model now. own_gates: those that it had before. like: a tensor with the factors'
    type and device."""

    def __init__(
        self,
        model: nn.Module,
        sites: Iterable[HeadSite],
        masks: Mapping[HeadSite, HeadGate],
        own_gates: Mapping[HeadSite, HeadGate],
        like: Tensor,
    ):
        self.model, self.sites, self.like = model, tuple(sites), like
        self.factors: dict[Any, Tensor] = {}  # by site; others may be added
        for site, mask in masks.items():
            mask.register_forward_hook(
                lambda _, inputs, xi, site=site: self.scaled(
                    site, own_gates[site]() if site in own_gates else xi
                )
            )

    def scaled(self, site: HeadSite, xi: Tensor) -> Tensor:
        """xi times the factor, each (H,), (B, H) or (B, H, L)."""
        factor = self.factors.get(site)
        if factor is None:
            return xi
        if 3 in (xi.dim(), factor.dim()):
            xi, factor = (each if each.dim() == 3 else each[..., None] for each in (xi, factor))
        return xi * factor

    def renew(
        self,
        batch: Any,
        *,
        per: Per,
        queries: Queries = query_tokens,
        at: Mapping[HeadSite, Tensor] | None = None,
    ) -> None:
        """Set new factors for a batch: (H,) per batch, (B, H) per sentence, (B, H, L) per token.

        at: the point at which gradients are taken, in the factor's shape or one that expands to it; None is
        1."""
        for site in self.sites:
            sentences, length = queries(self.model, site, batch).shape
            every = (sentences, site.heads, length)
            factor = self.like.new_ones({"batch": every[1:2], "sentence": every[:2], "token": every}[per])
            if at is not None:
                factor *= at[site].to(factor)
            self.factors[site] = factor.requires_grad_(True)

    def gradients(self, values: Tensor, cotangents: Tensor | None = None) -> dict[Any, Tensor]:
        """The gradient of a scalar to every factor, in the factor's shape; 0 where the scalar does not depend
        on a site.

        With cotangents (C, *values.shape), the values need not be a scalar: the gradients of the C sums of
        cotangents times values, (C, *factor's shape). The graph is kept then. Raises ValueError where the
        values depend on no head at all."""
        if not values.requires_grad:
            raise ValueError(
                "no gradient reaches the heads; compute the values from the model's output under "
                "torch.enable_grad()"
            )
        rows = () if cotangents is None else cotangents.shape[:1]
        many = len(cotangents) > 1 if cotangents is not None else False
        gradients = torch.autograd.grad(
            values,
            list(self.factors.values()),
            cotangents[0] if cotangents is not None and not many else cotangents,
            retain_graph=cotangents is not None,
            allow_unused=True,
            materialize_grads=True,
            is_grads_batched=many,  # which costs more, also for one row
        )
        return {
            site: gradient.expand(*rows, *factor.shape)
            for (site, factor), gradient in zip(self.factors.items(), gradients, strict=True)
        }

    def slopes(
        self,
        loss: Loss,
        batch: Any,
        *,
        per: Per,
        queries: Queries = query_tokens,
        at: Mapping[HeadSite, Tensor] | None = None,
    ) -> dict[Any, Tensor]:
        """The gradient of a batch's loss to new factors; arguments are those of `renew`."""
        self.renew(batch, per=per, queries=queries, at=at)
        with torch.enable_grad():
            return self.gradients(loss(self.model, batch))


@contextmanager
def head_factors(
    model: nn.Module,
    *,
    kinds: Iterable[str] | None = None,
    closed: HeadMap | None = None,
    keep_gates: bool = False,
) -> Iterator[HeadFactors]:
    """Put factors on the heads of the kinds (all unless named); meanwhile the model is in evaluation mode and
    its weights are frozen.

    closed: bool, True for heads whose output is 0. keep_gates: the model's own gates stay, at their test
    value. Afterwards the model is as it was, gates included. Raises ValueError if the model has no heads of
    the kinds, offloaded weights, or gates and not `keep_gates`."""
    check_here(model)
    bank = getattr(model, BANK, None) if keep_gates else None
    own_gates = {} if bank is None else dict(bank.items())
    masked = kinds_with(closed, own_gates).union(check_kinds(kinds))
    with frozen(model):
        if bank is not None:
            detach(model)
        try:
            with called(model):  # so that factors by sentence reach all heads
                masks = attach(model, gate="mask", kinds=masked)  # refuses a model with gates
                try:
                    if closed is not None:
                        masks.assign({site: (~row).double() for site, row in closed.items()})
                    floats = (each for each in model.parameters() if each.is_floating_point())
                    like = next(floats, torch.ones(())).detach()
                    yield HeadFactors(model, sites_of(model, kinds), dict(masks.items()), own_gates, like)
                finally:
                    detach(model)
        finally:
            if bank is not None:
                reattach(model, bank)


def gradient_means(
    model: nn.Module,
    batches: Iterable[Any],
    of: Callable[[Tensor], Tensor],
    *,
    per: Per = "sentence",
    at: Tensor | None = None,
    loss: Loss = batch_loss,
    kinds: Iterable[str] | None = None,
    closed: HeadMap | None = None,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> dict[HeadSite, Tensor]:
    """For every site the mean over sentences of a function of the loss's gradients to the heads' factors.

    of: the sum over rows of that function of gradients (N, H), float64. per: what a row is of. For "token"
    the mean is over query positions that are not padding, for "batch" still over sentences. at: the value of
    all factors where gradients are taken, 1 unless given. loss (model, batch): a sum over the batch's
    sentences, of which none may depend on another. queries (model, site, batch): (B, L) bool, True at
    positions that are not padding. Of both, batches.py has the default. closed: bool, True for heads whose
    output is 0. ranks: processes that share the batches out. The model is left as it was. Raises ValueError
    where it has gates or no heads of the kinds, and without any batch."""
    device, counts = device_of(model), Counter[HeadSite]()
    sums = {site: of(torch.zeros(0, site.heads, dtype=torch.float64)) for site in sites_of(model, kinds)}
    point = None if at is None else dict.fromkeys(sums, at)
    with head_factors(model, kinds=kinds, closed=closed) as factors:
        for batch in shared(batches, ranks):
            batch = on_device(batch, device)
            for site, gradient in factors.slopes(loss, batch, per=per, queries=queries, at=point).items():
                rows = (gradient.mT if per == "token" else gradient).reshape(-1, site.heads)
                sums[site] += of(rows.double()).cpu()  # padding has no gradient
                real = queries(model, site, batch)  # (B, L)
                counts[site] += int(real.sum()) if per == "token" else len(real)
    return sentence_means(sums, counts, ranks)
