"""What a model gives for a batch without some of its heads, under each of many closings."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Value, frozen, sites_of
from headgates.gates import HeadMap, HeadSite, attach, detach
from headgates.gates.headmap import Head
from headgates.gates.on_device import on_device
from headgates.gates.sites import device_of


def all_heads(model: nn.Module) -> list[Head]:
    """Every head of the model's attentions, site after site."""
    return heads_at(sites_of(model, None))


def heads_at(sites: Iterable[HeadSite]) -> list[Head]:
    """Every head of these sites, in their order."""
    return [(site, head) for site in sites for head in range(site.heads)]


def closing(heads: Iterable[Head]) -> HeadMap:
    """True for these heads, of their sites."""
    rows: dict[HeadSite, Tensor] = {}
    for site, head in heads:
        rows.setdefault(site, torch.zeros(site.heads, dtype=torch.bool))[head] = True
    return HeadMap(rows)


@torch.no_grad()
def values_without(
    model: nn.Module, batches: Iterable[Any], closings: Sequence[HeadMap], value: Value
) -> Iterator[tuple[Any, Tensor]]:
    """Yield each batch with what `value` gives for it under each closing, (C, ...), on the CPU in float64.

    closings: bool, True for heads whose output is 0; sites that one does not name stay open. value (model,
    batch): such as a number for each pair of the batch. Raises ValueError for a model that has gates."""
    device = device_of(model)
    with frozen(model):
        masks = attach(model, gate="mask")
        try:
            for batch in batches:
                batch, found = on_device(batch, device), []
                for closed in closings:
                    masks.assign({site: (~row).float() for site, row in closed.items()})
                    found.append(value(model, batch).double().cpu())
                    masks.assign({site: torch.ones(site.heads) for site in closed})
                yield batch, torch.stack(found)
        finally:
            detach(model)
