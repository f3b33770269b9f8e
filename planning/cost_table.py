"""What each part of a model costs: a table from some whole models that are measured, each with a part made
smaller everywhere.

    T(subnet) = rest + sum over layers that stay [ bare layer + sum over parts part(width) ]

A part is a kind of attention or feed-forward layer. Its cost at a width is what the model costs with all of
its sites at that width, less what it costs with all of them at the least, divided by their number; a bare
layer is what every second layer like it costs, less their parts. In between lines are straight. The same
table is made of multiply-adds, of parameters, and of times that are measured on this machine. Where a runtime
fills all attentions of a stack up to its largest number of heads (CTranslate2), their kinds are one part, as
wide as the widest of the stack.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Any

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
from headgates.gates.depth import STACKS, alike_layers
from headgates.planning.widths import Widths

# of a part's heads or neurons, measured beside all: what is left costs by its width, and the last of it, with
# which its calls go, by more. Points between would bend the line by less than two timings differ.
MEASURED_SHARES = (0.0, 0.25)
LITTLE_TIME = 0.05  # of the whole model's cost: the share of a part whose curve does not matter
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
    for site in sorted(subnet.units, key=lambda site: (site.in_decoder, site.tower, site.layer, site)):
        found.setdefault((site.stack, site.layer), {})[site.kind] = site
    return found


def by_stack(layers: Iterable[Layer]) -> dict[str, list[int]]:
    """The numbers of layers in each stack."""
    found: dict[str, list[int]] = {}
    for stack, number in layers:
        found.setdefault(stack, []).append(number)
    return found


def parameters(model: Any) -> float:
    return float(sum(each.numel() for each in model.parameters()))


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
        """On the straight line between the nearest two widths."""
        place = bisect_right(self.widths, width)
        if place in (0, len(self.widths)):
            return self.costs[max(0, place - 1)]
        (low, high), (cost, more) = self.widths[place - 1 : place + 1], self.costs[place - 1 : place + 1]
        return (more - cost) / (high - low) * (width - low) + cost


@dataclass(frozen=True)
class CostTable:
    """unit: of all costs. rest: what no layer costs. layers: stack -> each bare layer."""

    unit: str
    rest: float
    layers: Mapping[str, tuple[float, ...]]
    parts: tuple[Part, ...]

    def cost(self, subnet: Subnet) -> float:
        """What a model costs of which this stays."""
        opened, total = open_units(subnet), self.rest
        left = {
            layer: {kind: opened[site] for kind, site in sites.items()}
            for layer, sites in sites_by_layer(subnet).items()
            if all(map(subnet.has, sites.values()))
        }
        for layer, widths in left.items():
            total += self.layer(layer, widths, [each for (own, _), each in left.items() if own == layer[0]])
        return total

    def layer(self, layer: Layer, widths: Mapping[str, int], stacked: Sequence[Mapping[str, int]]) -> float:
        """What a layer costs whose sites, by kind, are so wide. stacked: the widths of all of its stack."""
        stack, number = layer
        total = self.layers[stack][number]
        for part in self.parts:
            rows = stacked if part.padded else [widths]
            if own := [row[kind] for row in rows for kind in part.kinds if kind in row]:
                total += part.cost(max(own))
        return total

    def limit(self, model: Any, budget: float, kinds: Collection[str] = ALL_KINDS) -> Limit:
        """The budget as a limit on gates of these kinds, where every head and neuron costs its share of its
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
        gated = {site: price for site, price in shares.items() if site.kind in kinds}
        others = self.cost(Subnet.of(model)) - sum(price * site.heads for site, price in gated.items())
        return Limit({site: price / unit for site, price in gated.items()}, max(0.0, budget - others) / unit)


def half_of_layers(
    model: Any, stack: str, staying: Collection[Layer]
) -> Iterator[tuple[list[int], list[int]]]:
    """The layers of a stack that are alike, and every second of them, from the last: one at least, the first
    layer only where no other is like it, and none that stays."""
    groups = alike_layers(model, stack)
    for alike in groups:
        free = [number for number in alike if (stack, number) not in staying]
        chosen = [number for number in free if number] or free * (len(groups) > 1)
        yield alike, chosen[::-2]


def cost_table(
    model: Any,
    measure: CostMeasure,
    *,
    unit: str,
    padded: bool = False,
    whole: float | None = None,
    dropping: Collection[str] = STACKS,
    staying: Collection[Layer] = (),
    multiple: int = WIDTH,
    report: Callable[[str], None] = lambda line: None,
) -> CostTable:
    """The table of a model, which is made smaller in place, measured, and put back.

    measure: what a model costs. padded: the runtime fills attentions up. whole: what the model costs, where
    that is known. dropping: stacks whose layers may go, so that bare ones are measured, but for those
    `staying`. multiple: of neurons."""

    def small(subnet: Subnet) -> float:
        with subnet.removed(model):
            return measure(model)

    found = {site: module for site, module in find_sites(model, ALL_KINDS).items() if site.heads}
    widths_of = {site: Widths.of(site, module, multiple) for site, module in found.items()}
    kinds = dict.fromkeys(site.kind for site in found)
    groups = [tuple(kind for kind in group if kind in kinds) for group in PADDED if padded]
    groups = [group for group in groups if group]
    groups += [(kind,) for kind in kinds if not any(kind in group for group in groups)]
    whole = measure(model) if whole is None else whole
    whole_subnet, parts = Subnet.of(model), []
    for group in groups:
        sites = [site for site in found if site.kind in group]
        layers = len({(site.stack, site.layer) for site in sites})
        # where attentions are filled up, each counts as the widest
        is_padded, widest = padded and group[0] not in FFN_KINDS, max(site.heads for site in sites)
        points = {float(widest): whole}
        # width of the widest -> the widths of all
        at: dict[float, Sequence[float]] = {
            float(widest): [widest if is_padded else site.heads for site in sites]
        }
        for share in MEASURED_SHARES:
            if points.get(0.0, 0.0) > (1 - LITTLE_TIME) * whole:
                break  # between, a straight line will do
            kept = {site: widths_of[site].share(share) for site in sites}
            if (width := float(max(kept.values()))) not in points:
                # the first ones stay, as what it costs does not depend on which
                closed = HeadMap({site: torch.arange(site.heads) >= n for site, n in kept.items()})
                points[width] = small(whole_subnet.without(closed))
                at[width] = [width if is_padded else n for n in kept.values()]
        widths = sorted(points)
        floor = points[widths[0]]
        costs, shared = [0.0], layers / len(sites)  # sites of one layer share its cost
        for place, width in enumerate(widths[1:], 1):
            # of a base whose layers are not alike, a narrower site is on the line between two widths
            so_far, last = Part(group, False, tuple(widths[:place]), tuple(costs)), widths[place - 1]
            known = shared * sum(so_far.cost(own) for own in at[width])
            lines = shared * sum(max(0.0, own - last) / (width - last) for own in at[width])
            # a measured curve may dip by chance; a wider part never costs less
            costs.append(costs[-1] + max(0.0, points[width] - floor - known) / lines)
        parts.append(Part(group, is_padded, tuple(widths), tuple(costs)))
        share = parts[-1].costs[-1] * layers / whole
        said = f"{share:.0%}" if share >= 0.005 else "less than timings tell apart"
        report(f"{', '.join(group)}: {said} of the {unit} of the whole model")
    table = CostTable(unit, 0.0, bare_layers(whole_subnet), tuple(parts))
    bare = {stack: list(own) for stack, own in table.layers.items()}
    for stack in [each for each in bare if each in dropping]:
        for alike, gone in half_of_layers(model, stack, staying):
            if gone:
                less = whole_subnet.without(layers={stack: gone})
                of_parts = table.cost(whole_subnet) - table.cost(less)
                cost = max(0.0, (whole - small(less) - of_parts) / len(gone))
                for number in alike:
                    bare[stack][number] = cost
    table = replace(table, layers={stack: tuple(own) for stack, own in bare.items()})
    return replace(table, rest=max(0.0, whole - table.cost(whole_subnet)))


def bare_layers(subnet: Subnet) -> dict[str, tuple[float, ...]]:
    """Stack -> each bare layer, where none costs anything."""
    return {stack: (0.0,) * (1 + max(own)) for stack, own in by_stack(sites_by_layer(subnet)).items()}


def counting_table(model: Any, kinds: Sequence[str]) -> CostTable:
    """The table in which each unit of these kinds costs 1, and nothing else anything."""
    most = dict[str, float]()
    for site in find_sites(model, kinds):
        most[site.kind] = max(most.get(site.kind, 1.0), float(site.heads))
    parts = tuple(Part((kind,), False, (0.0, count), (0.0, count)) for kind, count in most.items())
    return CostTable("units", 0.0, bare_layers(Subnet.of(model)), parts)
