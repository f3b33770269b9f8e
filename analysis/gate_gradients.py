"""Gradients to the gate of every head, from which importance and relevance are computed; for any model in
which `find_sites` finds heads.

The output of every head is multiplied by a factor of 1 (beside the head's own gate, if it has one): one
number for the batch, one for each sentence, or one for each query position. The gradients of any function of
(model, batch) to these factors are then taken:

    with head_factors(model) as factors:
        for batch in batches:
            factors.renew(batch, per="sentence")
            dL = factors.gradients(loss(model, batch))   # site -> (B, H)

Letters: C rows of cotangents, B sentences, H heads, L query positions.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Queries, query_tokens
from headgates.gates import HeadGate, HeadMap, HeadSite, attach, detach, reattach
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.sites import BANK

Per = Literal["batch", "sentence", "token"]


class HeadFactors:
    """Factors on the outputs of the heads of `sites`; made by `head_factors`."""

    def __init__(
        self,
        model: nn.Module,
        masks: Mapping[HeadSite, HeadGate],
        sites: Iterable[HeadSite],
        own_gates: Mapping[HeadSite, HeadGate],
        like: Tensor,
    ):
        """masks: the gates on the model now. sites: those whose heads get a factor. own_gates: the gates that
        the model had before. like: a tensor with the factors' type and device."""
        self.model, self.sites, self.like = model, tuple(sites), like
        self.factors: dict[HeadSite, Tensor] = {}
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
            xi, factor = (tensor if tensor.dim() == 3 else tensor[..., None] for tensor in (xi, factor))
        return xi * factor

    def renew(self, batch: Any, *, per: Per, queries: Queries = query_tokens) -> None:
        """Set new factors of 1 for a batch: (H,) per batch, (B, H) per sentence, (B, H, L) per token."""
        self.factors = {}
        for site in self.sites:
            rows, length = queries(self.model, site, batch).shape
            shape = {
                "batch": (site.heads,),
                "sentence": (rows, site.heads),
                "token": (rows, site.heads, length),
            }[per]
            self.factors[site] = self.like.new_ones(shape).requires_grad_(True)

    def gradients(self, values: Tensor, cotangents: Tensor | None = None) -> dict[HeadSite, Tensor]:
        """The gradient of a scalar to every factor, in the factor's shape; 0 where the scalar does not depend
        on a site.

        With cotangents (C, *values.shape), the values need not be a scalar: the gradients of the C sums of
        cotangents times values, (C, *factor's shape). The graph is kept then. Raises ValueError where the
        values depend on no head at
        all."""
        if not values.requires_grad:
            raise ValueError(
                "no gradient reaches the heads; compute the values from the model's output under "
                "torch.enable_grad()"
            )
        leaves = list(self.factors.values())
        if cotangents is None:
            gradients = torch.autograd.grad(values, leaves, allow_unused=True)
        elif len(cotangents) == 1:  # without the cost of a batched backward pass
            gradients = torch.autograd.grad(
                values, leaves, cotangents[0], allow_unused=True, retain_graph=True
            )
            gradients = tuple(gradient if gradient is None else gradient[None] for gradient in gradients)
        else:
            gradients = torch.autograd.grad(
                values, leaves, cotangents, allow_unused=True, retain_graph=True, is_grads_batched=True
            )
        rows = () if cotangents is None else (len(cotangents),)
        pairs = zip(self.factors.items(), gradients, strict=True)
        return {
            site: leaf.new_zeros((*rows, *leaf.shape)) if gradient is None else gradient
            for (site, leaf), gradient in pairs
        }


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
    the kinds, or has gates and not
    `keep_gates`."""
    bank = getattr(model, BANK, None) if keep_gates else None
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    own_gates: dict[HeadSite, HeadGate] = {} if bank is None else dict(bank.items())
    if bank is not None:
        detach(model)
    try:
        options: dict[str, Any] = {} if closed is None else {"xi": (~closed).map(torch.Tensor.double)}
        sites = attach(model, gate="mask", kinds=kinds, **options).sites  # refuses a model with gates
        if own_gates:  # gates of other kinds than those asked for stay where they are
            detach(model)
            attach(model, gate="mask", kinds={site.kind for site in (*sites, *own_gates)})
        try:
            for parameter in trained:
                parameter.requires_grad_(False)
            like = next(
                (parameter for parameter in model.parameters() if parameter.is_floating_point()),
                torch.ones(()),
            )
            with evaluation_mode(model):
                yield HeadFactors(model, dict(getattr(model, BANK).items()), sites, own_gates, like.detach())
        finally:
            detach(model)
    finally:
        if bank is not None:
            reattach(model, bank)
        for parameter in trained:
            parameter.requires_grad_(True)
