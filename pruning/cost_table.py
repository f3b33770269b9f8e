"""What each part of a Transformer costs: a table from some whole models that are measured, each with a part
made smaller everywhere.

    T(subnet) = rest + sum over layers that stay [ layer(stack) + sum over parts part(width) ]

A part is a kind of attention or feed-forward layer. Its cost at a width is what the model costs with all of
its sites at that width, less what it costs with all of them at 0, divided by their number; a stack's bare
layer is what half of its layers cost, less their parts. In between lines are straight. The same table is made
of multiply-adds, of parameters, and of milliseconds that are measured on this machine by a runtime
(runtime_cost.py). Where a runtime fills all attentions of a stack up to its largest number of heads
(CTranslate2), their kinds are one part, as wide as the widest of the stack.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
import torch

from headgates.gates import (
    ALL_KINDS,
    FFN_KINDS,
    KINDS,
    WIDTH,
    HeadMap,
    HeadSite,
    Limit,
    Subnet,
    find_sites,
)

MEASURED_SHARES = (0.75, 0.5, 0.25, 0.0)  # of a part's heads or neurons, measured beside all
PADDED = (
    ("enc-self",),
    ("dec-self", "cross"),
)  # kinds that have one number of heads where a stack is filled up
CostMeasure = Callable[[Any], float]  # a model -> what it costs
Layer = tuple[str, int]  # stack and number


def open_units(subnet: Subnet) -> dict[HeadSite, int]:
    """How many heads or neurons stay at each site."""
    return {site: int(row.sum()) for site, row in subnet.units.items()}


def sites_by_layer(subnet: Subnet) -> dict[Layer, dict[str, HeadSite]]:
    """Layer -> its sites by kind, encoder first; dropped ones too."""
    found: dict[Layer, dict[str, HeadSite]] = {}
    for site in sorted(subnet.units, key=lambda site: (site.stack == "decoder", site.layer, site)):
        found.setdefault((site.stack, site.layer), {})[site.kind] = site
    return found


def by_stack(layers: Iterable[Layer]) -> dict[str, list[int]]:
    """The numbers of layers in each stack."""
    found: dict[str, list[int]] = {}
    for stack, number in layers:
        found.setdefault(stack, []).append(number)
    return found


def made_small(model: Any, subnet: Subnet) -> Any:
    """A copy of a model with this part alone."""
    copied = copy.deepcopy(model)
    subnet.remove(copied)
    return copied


@dataclass(frozen=True)
class Part:
    """kinds: of its sites. padded: each site costs what the widest of its stack does. widths, costs: of a
    layer, from 0 up."""

    kinds: tuple[str, ...]
    padded: bool
    widths: tuple[float, ...]
    costs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.widths) == len(self.costs) > 0:
            raise ValueError(f"{len(self.costs)} costs of {len(self.widths)} widths; expected one of each")
        if any(second <= first for first, second in pairwise((-1.0, *self.widths))):
            raise ValueError(f"widths {[*self.widths]}; expected rising numbers of at least 0")
        if not all(isfinite(cost) and cost >= 0 for cost in self.costs):
            raise ValueError(f"costs {[*self.costs]}; expected finite numbers of at least 0")

    def cost(self, width: float) -> float:
        return float(np.interp(width, self.widths, self.costs))


@dataclass(frozen=True)
class CostTable:
    """unit: of all costs. rest: what no layer costs. layers: stack -> a bare layer."""

    unit: str
    rest: float
    layers: Mapping[str, float]
    parts: tuple[Part, ...]

    def cost(self, subnet: Subnet) -> float:
        """What a model costs of which this stays."""
        opened, total = open_units(subnet), self.rest
        left = {
            layer: {kind: opened[site] for kind, site in sites.items()}
            for layer, sites in sites_by_layer(subnet).items()
            if all(map(subnet.has, sites.values()))
        }
        for (stack, _), widths in left.items():
            total += self.layer(stack, widths, [each for (own, _), each in left.items() if own == stack])
        return total

    def layer(self, stack: str, widths: Mapping[str, int], stacked: Sequence[Mapping[str, int]]) -> float:
        """What a layer costs whose sites, by kind, are so wide. stacked: the widths of all of its stack."""
        total = self.layers[stack]
        for part in self.parts:
            rows = stacked if part.padded else [widths]
            if own := [row[kind] for row in rows for kind in part.kinds if kind in row]:
                total += part.cost(max(own))
        return total

    def limit(self, model: Any, budget: float) -> Limit:
        """The budget as a limit on the gates of a model, where every head and neuron costs its share of its
        site's cost, and all layers stay. In units of the mean head's cost."""
        shares = {}
        for part in self.parts:
            sites = find_sites(model, part.kinds)
            layers = Counter((site.stack, site.layer) for site in sites)
            for site in sites:  # those of one layer share its cost
                share = part.cost(site.heads) / layers[site.stack, site.layer]
                shares[site] = share / max(1, site.heads)
        heads = [price for site, price in shares.items() if site.kind in KINDS]
        unit = max(sum(heads) / len(heads), 1e-12)
        gated = sum(price * site.heads for site, price in shares.items())
        total = max(0.0, budget - (self.cost(Subnet.of(model)) - gated))
        return Limit({site: price / unit for site, price in shares.items()}, total / unit)


def smaller_copy(model: Any, kinds: tuple[str, ...], share: float) -> Any:
    """A copy in which all sites of these kinds have so large a share of their heads or neurons: the first
    ones, as what it costs does not depend on which."""
    sites = find_sites(model, kinds)
    closed = HeadMap({site: torch.arange(site.heads) >= kept_units(site, share) for site in sites})
    return made_small(model, Subnet.of(model).without(closed))


def kept_units(site: HeadSite, share: float) -> int:
    """How many units a share is, of neurons a multiple of 16, or all."""
    kept = round(site.heads * share)
    if site.kind not in FFN_KINDS or kept == site.heads:
        return kept
    return min(site.heads, WIDTH * round(kept / WIDTH))


def half_of_layers(model: Any, stack: str) -> list[int]:
    """Every second layer of a stack, from the last; none where there is one alone."""
    count = len(getattr(model, stack).layers)
    return list(range(count - 1, 0, -2))


def cost_table(
    model: Any,
    measure: CostMeasure,
    *,
    unit: str,
    padded: bool,
    report: Callable[[str], None] = lambda line: None,
) -> CostTable:
    """The table of a Transformer of ours. measure: what a model costs. padded: the runtime fills attentions
    up."""
    kinds = dict.fromkeys(site.kind for site in find_sites(model, ALL_KINDS) if site.heads)
    groups = [tuple(kind for kind in group if kind in kinds) for group in PADDED if padded]
    groups = [group for group in groups if group]
    groups += [(kind,) for kind in kinds if not any(kind in group for group in groups)]
    whole = measure(model)
    parts = []
    for group in groups:
        sites = list(find_sites(model, group))
        layers = len({(site.stack, site.layer) for site in sites})
        points = {float(max(site.heads for site in sites)): whole}
        for share in MEASURED_SHARES:
            width = float(max(kept_units(site, share) for site in sites))
            if width not in points:
                points[width] = measure(smaller_copy(model, group, share))
        widths = sorted(points)
        floor = points[widths[0]]
        # a measured curve may dip by chance; a wider part never costs less
        costs = np.maximum.accumulate([max(0.0, points[width] - floor) / layers for width in widths])
        parts.append(
            Part(group, padded and group[0] not in FFN_KINDS, tuple(widths), tuple(map(float, costs)))
        )
        report(f"{', '.join(group)}: {costs[-1] * layers / whole:.0%} of the {unit} of the whole model")
    table = CostTable(unit, 0.0, {"encoder": 0.0, "decoder": 0.0}, tuple(parts))
    whole_subnet, bare = Subnet.of(model), {}
    for stack in ("encoder", "decoder"):
        bare[stack] = 0.0
        if gone := half_of_layers(model, stack):
            less = whole_subnet.without(layers={stack: gone})
            of_parts = table.cost(whole_subnet) - table.cost(less)
            bare[stack] = max(0.0, (whole - measure(made_small(model, less)) - of_parts) / len(gone))
    table = replace(table, layers=bare)
    return replace(table, rest=max(0.0, whole - table.cost(whole_subnet)))
