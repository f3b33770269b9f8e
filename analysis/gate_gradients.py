"""Gradients to the gate of every head: what importance and relevance are made of, for any model that `find_sites` finds heads in.

Every head gets a factor of 1 (times the gate that it has, if any), as one number for all, one for each sentence, or one for each query
position. A function of (model, batch) is run forward, and its gradients to the factors are taken:

    with head_factors(model) as factors:
        for batch in batches:
            factors.renew(batch, per="sentence")
            dL = factors.gradients(loss(model, batch))   # site -> (B, H)

Letters: C rows of cotangents, B sentences, H heads, L query positions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gates import HeadGate, HeadMap, HeadSite, attach, detach, reattach
from gates.sites import BANK

Per = Literal["batch", "sentence", "token"]
Queries = Callable[[Any, HeadSite, Any], Tensor]  # (model, site, batch) -> (B, L) bool: which query positions are not padding


def query_tokens(model: Any, site: HeadSite, batch: Any) -> Tensor:
    """(B, L) bool, True at the query positions of a translation batch that are not padding: `Queries` of our own models."""
    if site.kind == "enc-self":
        return batch.source != model.source_specials.padding
    return batch.target_out != model.target_specials.padding


class HeadFactors:
    """A factor on the output of every head of `sites`; `head_factors` makes it."""

    def __init__(
        self,
        model: nn.Module,
        gates: Mapping[HeadSite, HeadGate],
        sites: Iterable[HeadSite],
        had: Mapping[HeadSite, HeadGate],
        like: Tensor,
    ):
        """gates: masks on the model. sites: whose heads get a factor. had: gates that the model had. like: of the factors' type, device."""
        self.model, self.sites, self.like = model, tuple(sites), like
        self.factors: dict[HeadSite, Tensor] = {}
        for site, gate in gates.items():
            gate.register_forward_hook(lambda mask, inputs, xi, site=site: self.scaled(site, had[site]() if site in had else xi))

    def scaled(self, site: HeadSite, xi: Tensor) -> Tensor:
        """xi times the factor, each (H,), (B, H) or (B, H, L)."""
        factor = self.factors.get(site)
        if factor is None:
            return xi
        if 3 in (xi.dim(), factor.dim()):
            xi, factor = (each if each.dim() == 3 else each[..., None] for each in (xi, factor))
        return xi * factor

    def renew(self, batch: Any, *, per: Per, queries: Queries = query_tokens) -> None:
        """New factors of 1 for a batch: (H,) per batch, (B, H) per sentence, (B, H, L) per token."""
        self.factors = {}
        for site in self.sites:
            rows, length = queries(self.model, site, batch).shape
            shape = {"batch": (site.heads,), "sentence": (rows, site.heads), "token": (rows, site.heads, length)}[per]
            self.factors[site] = self.like.new_ones(shape).requires_grad_(True)

    def gradients(self, values: Tensor, cotangents: Tensor | None = None) -> dict[HeadSite, Tensor]:
        """The gradient of a scalar to every factor, in the factor's shape; 0 where the scalar does not depend on a site.

        cotangents (C, *values.shape): of each of the C sums of cotangents times values, (C, *factor's shape). The graph is kept then.
        Raises ValueError where the values depend on no head at all."""
        if not values.requires_grad:
            raise ValueError("no gradient reaches the heads; compute the values from the model's output under torch.enable_grad()")
        leaves = list(self.factors.values())
        if cotangents is None:
            found = torch.autograd.grad(values, leaves, allow_unused=True)
        elif len(cotangents) == 1:  # without the cost of a batched backward pass
            found = torch.autograd.grad(values, leaves, cotangents[0], allow_unused=True, retain_graph=True)
            found = tuple(each if each is None else each[None] for each in found)
        else:
            found = torch.autograd.grad(values, leaves, cotangents, allow_unused=True, retain_graph=True, is_grads_batched=True)
        rows = () if cotangents is None else (len(cotangents),)
        pairs = zip(self.factors.items(), found, strict=True)
        return {site: leaf.new_zeros((*rows, *leaf.shape)) if each is None else each for (site, leaf), each in pairs}


@contextmanager
def head_factors(
    model: nn.Module, *, kinds: Iterable[str] | None = None, closed: HeadMap | None = None, keep_gates: bool = False
) -> Iterator[HeadFactors]:
    """Factors on the heads of the kinds (all unless named), for a while in which the model is in evaluation mode with frozen weights.

    closed: heads that are shut. keep_gates: factors stand beside the model's own gates, at their test value. Afterwards the model is as it
    was, gates included. Raises ValueError if the model has no heads of the kinds, or gates without `keep_gates`."""
    bank = getattr(model, BANK, None) if keep_gates else None
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    modes = [(module, module.training) for module in model.modules()]
    had: dict[HeadSite, HeadGate] = {} if bank is None else dict(bank.items())
    if bank is not None:
        detach(model)
    try:
        options = {} if closed is None else {"xi": (~closed).map(torch.Tensor.double)}
        sites = attach(model, gate="mask", kinds=kinds, **options).sites  # refuses a model with gates
        if had:  # gates of other kinds than those asked for stay where they are
            detach(model)
            attach(model, gate="mask", kinds={site.kind for site in (*sites, *had)})
        try:
            for module, _ in modes:
                module.training = False
            for parameter in trained:
                parameter.requires_grad_(False)
            like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), torch.ones(()))
            yield HeadFactors(model, dict(getattr(model, BANK).items()), sites, had, like.detach())
        finally:
            detach(model)
    finally:
        if bank is not None:
            reattach(model, bank)
        for parameter in trained:
            parameter.requires_grad_(True)
        for module, training in modes:
            module.training = training
