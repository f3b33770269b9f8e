"""How much of a Transformer is open: heads of each attention, neurons of each feed-forward layer, and which
layers are gone.

Sites and layers have the names and numbers of the unpruned model.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, find_sites, remove
from headgates.gates.depth import drop_layers

Layer = tuple[str, int]  # stack and number


@dataclass(frozen=True)
class Shape:
    """open: of each site, how many heads or neurons stay. dropped: layers that are taken out whole."""

    open: Mapping[HeadSite, int]
    dropped: frozenset[Layer] = field(default_factory=frozenset)

    @classmethod
    def of(cls, model: Any) -> "Shape":
        """The shape of a model as it is."""
        return cls({site: site.heads for site in find_sites(model, ALL_KINDS)})

    @property
    def layers(self) -> dict[Layer, dict[str, HeadSite]]:
        """Layer -> its sites by kind, encoder first; dropped ones too."""
        found: dict[Layer, dict[str, HeadSite]] = {}
        for site in sorted(self.open, key=lambda site: (site.stack == "decoder", site.layer, site)):
            found.setdefault((site.stack, site.layer), {})[site.kind] = site
        return found

    @property
    def left(self) -> Iterator[tuple[Layer, dict[str, int]]]:
        """The layers that stay, each with its kinds' open units."""
        for layer, sites in self.layers.items():
            if layer not in self.dropped:
                yield layer, {kind: self.open[site] for kind, site in sites.items()}

    def stays(self, site: HeadSite) -> int:
        """Open heads or neurons of a site; 0 in a layer that is dropped."""
        return 0 if (site.stack, site.layer) in self.dropped else self.open[site]

    def count(self, kinds: tuple[str, ...]) -> int:
        """Open units of these kinds."""
        return sum(self.stays(site) for site in self.open if site.kind in kinds)

    @property
    def dropped_by_stack(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for stack, number in sorted(self.dropped):
            found.setdefault(stack, []).append(number)
        return found

    @property
    def words(self) -> str:
        """In words: "40 of 72 heads, 1,024 of 3,072 neurons, 6 of 6 encoder and 4 of 6 decoder layers"."""
        total = {
            kinds: sum(site.heads for site in self.open if site.kind in kinds) for kinds in (KINDS, FFN_KINDS)
        }
        layers = list(self.layers)
        stacks = [
            f"{sum(1 for each in layers if each[0] == stack and each not in self.dropped)} of "
            f"{sum(1 for each in layers if each[0] == stack)} {stack}"
            for stack in dict.fromkeys(stack for stack, _ in layers)
        ]
        return (
            f"{self.count(KINDS)} of {total[KINDS]} heads, {self.count(FFN_KINDS):,} of {total[FFN_KINDS]:,} "
            f"neurons, {' and '.join(stacks)} layers"
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other shapes of the same model."""
        return tuple(self.open.values()), self.dropped

    def to_json(self) -> dict[str, Any]:
        return {
            "open": {site.name: self.stays(site) for site in self.open},
            "of": {site.name: site.heads for site in self.open},
            "dropped": self.dropped_by_stack,
        }


def shaped(model: Any, shape: Shape) -> Any:
    """A copy of a model in a shape: the first heads and neurons stay, as what it costs does not depend on
    which."""
    copied = copy.deepcopy(model)
    closed = {site: torch.arange(site.heads) >= shape.stays(site) for site in find_sites(copied, ALL_KINDS)}
    remove(copied, HeadMap(closed))
    drop_layers(copied, shape.dropped_by_stack)
    return copied
