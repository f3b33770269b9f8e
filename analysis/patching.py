"""Activation patching and path patching: what heads carry of one input, found by giving out their outputs
while the model reads another.   Wang et al. 2023 (arXiv:2211.00593), section 3.1.

    patching = Patching(model, batch, other, value)  # batch is x, other is x'
    patching.activation(heads)                       # x, these heads as on x', all after them anew
    patching.path(heads)                             # x, these heads as on x', all other heads as on x
    patching.path(heads, into={"v": receivers})      # that pass gives the receivers' v; then x with it

In a path, norms, feed-forward parts and whatever else is no head are computed anew, so that nothing is taken
to be linear: paths are exact with norms before and after the sums, and from the encoder's heads through the
memory into the k and v of cross-attention. Read at the output, a path is the direct effect. Read at
receivers, everything after them is computed as usual. Letters: H heads, K head width, L positions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Value, sites_of
from headgates.gates import HeadMap, HeadSite
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.exchange import exchanged
from headgates.gates.names import check_name
from headgates.gates.on_device import on_device
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import columns_of, heads_per_key, projection, rows_of, sizes_of
from headgates.gates.sites import device_of

RECEIVER_PARTS = ("q", "k", "v")


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

    def path(self, senders: HeadMap, *, into: Mapping[str, HeadMap] | None = None) -> Tensor:
        """The value where the senders (True) reach the output directly or, with `into` ("q", "k" or "v" ->
        heads), the receivers' q, k or v.

        Raises ValueError at an unknown part, and where receivers share a key head with heads that are
        none."""
        masks = self.masks(senders)
        frozen = {
            site: torch.where(masks[site], self.other[site], own) if site in masks else own
            for site, own in self.own.items()
        }
        if into is None:
            with exchanged(self.sites, lambda site, z: frozen[site]):
                return self.measured()
        blocks = self.blocks(into)
        with exchanged(self.sites, lambda site, z: frozen[site]), self.projected(blocks, {}) as found:
            self.measured()
        with self.projected(blocks, found):
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

    # ------------------------------------------------------------ receivers

    def blocks(self, into: Mapping[str, HeadMap]) -> dict[nn.Module, list[bool]]:
        """Projection -> for each of its outputs, whether it is a receiver's. Errors are those of
        `path`."""
        found: dict[nn.Module, list[bool]] = {}
        for part, heads in into.items():
            check_name("part of a receiver", part, RECEIVER_PARTS)
            for site in self.masks(heads):
                module, rule = self.sites[site], rule_of(self.sites[site])
                shared = 1 if part == "q" else heads_per_key(module, rule)
                groups = heads[site].view(-1, shared)
                if (groups.any(1) != groups.all(1)).any():
                    raise ValueError(
                        f"{site.name}: {shared} heads share a key head, so their {part} is one; name all of "
                        "them as receivers"
                    )
                name = getattr(rule, part)
                where = projection(module, name)
                width = columns_of(projection(module, rule.out), rule) // site.heads
                rows = sizes_of(where, rule)[0]
                own = [
                    kind == part and bool(groups[number].all())
                    for kind, number in rows_of(module, rule, name, site.heads, rows=rows, width=width)
                ]
                found[where] = [a or b for a, b in zip(own, found.get(where, own), strict=True)]
        return found

    @contextmanager
    def projected(
        self, blocks: Mapping[nn.Module, list[bool]], given: Mapping[nn.Module, Tensor]
    ) -> Iterator[dict[nn.Module, Tensor]]:
        """The outputs of these projections, filled in by a pass. given: of some the outputs of an earlier
        pass, which take the place of their own in the receivers' blocks."""
        found: dict[nn.Module, Tensor] = {}

        def after(module: nn.Module, _: Any, output: Tensor, *, receives: list[bool]) -> Tensor | None:
            found[module] = output
            if module not in given:
                return None
            return torch.where(torch.tensor(receives, device=output.device), given[module], output)

        handles = []
        try:
            for module, receives in blocks.items():
                handles.append(module.register_forward_hook(partial(after, receives=receives)))
            yield found
        finally:
            for handle in handles:
                handle.remove()
