"""Activation patching and path patching: what heads carry of one input, found by giving out their outputs
while the model reads another.   Wang et al. 2023 (arXiv:2211.00593), section 3.1.

    patching = Patching(model, batch, other, value)  # batch is x, other is x'
    patching.activation(heads)                       # x, these heads as on x', all after them anew
    patching.path(heads)                             # x, these heads as on x', all other heads as on x

In a path, norms, feed-forward parts and whatever else is no head are computed anew, so that nothing is taken
to be linear: paths are exact with norms before and after the sums. The change of the value is the heads'
direct effect. Letters: H heads, K head width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Value, sites_of
from headgates.gates import HeadMap, HeadSite
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.exchange import exchanged
from headgates.gates.on_device import on_device
from headgates.gates.sites import device_of


class Patching:
    """Two batches of equal shapes, of which one is patched by the other.

    clean, corrupted: the value of the batch and of the other as they are. Raises ValueError where the heads'
    outputs on the two have not the same shape, and for a model in which a hook does not see the output of
    every head once in a pass."""

    def __init__(self, model: nn.Module, batch: Any, other: Any, value: Value):
        self.model, self.value, self.sites = model, value, sites_of(model, None)
        device = device_of(model)
        self.batch, other = on_device(batch, device), on_device(other, device)
        self.clean, self.own = self.recorded(self.batch)
        self.corrupted, self.other = self.recorded(other)
        for site, own in self.own.items():
            if own.shape != self.other[site].shape:
                raise ValueError(
                    f"the heads of {site.name} give {tuple(own.shape)} numbers on one input and "
                    f"{tuple(self.other[site].shape)} on the other; a head is patched between inputs of "
                    "equal lengths"
                )

    @torch.no_grad()
    def measured(self) -> Tensor:
        """The value of the batch, by the model as it now is."""
        with evaluation_mode(self.model):
            return self.value(self.model, self.batch)

    @torch.no_grad()
    def recorded(self, batch: Any) -> tuple[Tensor, dict[HeadSite, Tensor]]:
        """The value of a batch, and the outputs of the heads of every site, (..., H, K) as the model has
        them."""
        seen: dict[HeadSite, list[Tensor]] = {site: [] for site in self.sites}

        def keep(site: HeadSite, z: Tensor) -> Tensor:
            seen[site].append(z)
            return z

        with evaluation_mode(self.model), exchanged(self.sites, keep):
            value = self.value(self.model, batch)
        for site, found in seen.items():
            if len(found) != 1:
                name = type(self.sites[site]).__name__
                raise ValueError(
                    f"{site.name}: a pass calls the output projection of {name} {len(found)} times; heads "
                    "are patched where it is called once. Detach gates first, and give a value that makes "
                    "one pass; an attention that reads out_proj.weight without a call cannot be patched"
                )
        return value, {site: found[0] for site, found in seen.items()}

    def activation(self, heads: HeadMap) -> Tensor:
        """The value where these heads (True) give out what they do on the other input."""
        masks = self.masks(heads)

        def exchange(site: HeadSite, z: Tensor) -> Tensor:
            return torch.where(masks[site], self.other[site], z)

        with exchanged({site: self.sites[site] for site in masks}, exchange):
            return self.measured()

    def path(self, senders: HeadMap) -> Tensor:
        """The value where the senders (True) give out what they do on the other input, and all other heads
        what they do on this one."""
        masks = self.masks(senders)
        frozen = {
            site: torch.where(masks[site], self.other[site], own) if site in masks else own
            for site, own in self.own.items()
        }
        with exchanged(self.sites, lambda site, z: frozen[site]):
            return self.measured()

    def masks(self, heads: HeadMap) -> dict[HeadSite, Tensor]:
        """Site -> (H, 1) bool, of the sites that have any of the heads. Raises ValueError at a site that the
        model lacks."""
        for site in heads:
            if site not in self.sites:
                raise ValueError(
                    f"the model has no {site.name} of {site.heads} heads; it has "
                    f"{', '.join(each.name for each in self.sites)}"
                )
        return {site: row[:, None].to(self.own[site].device) for site, row in heads.items() if row.any()}
