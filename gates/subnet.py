"""Which heads, neurons and layers of a model stay.

    subnet = Subnet.of(model).without(scores.lowest(24), {"decoder": [1]})
    with subnet.closed(model):       # closed units give nothing, dropped layers are skipped
        ...                          # losses, outputs
    subnet.remove(model)             # in place; the outputs are the same

Sites, units and layers are numbered as the model has them now. Removal numbers them anew: afterwards
`Subnet.of(model)` is `subnet.kept`.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from .attach_modes import check_ungated
from .depth import StackLayers, cut_layers, drop_layers, skipped, stacks_of
from .headmap import ALL_KINDS, HeadMap, HeadSite, is_rising
from .outputs import closing_outputs
from .proof import memory_of
from .remove import cut_heads, remove
from .short_example import Inputs
from .sites import detach, find_sites

Rows = Mapping[str, tuple[bool, ...]]
LARGEST_SITE = 2**20  # units of a site, in a file


@dataclass(frozen=True)
class Subnet:
    """units: True at each head and neuron that stays; none in a dropped layer does. layers: stack -> for each
    of its layers, whether it stays; a stack whose layers cannot be dropped is missing.

    Raises ValueError where a unit of a dropped layer stays, or a stack has no layer left."""

    units: HeadMap
    layers: Rows = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stack, stay in self.layers.items():
            if not any(stay):
                raise ValueError(f"the {stack} would have no layer left; leave one of {len(stay)} at least")
        for site, row in self.units.items():
            if row.dtype != torch.bool:
                raise ValueError(f"expected bools, True at the units that stay; {site.name} has numbers")
            if not self.has(site) and row.any():
                raise ValueError(f"units of {site.name} stay, but its layer is dropped")

    @classmethod
    def of(cls, model: nn.Module) -> "Subnet":
        """All that the model has now. Raises ValueError at a model without sites."""
        sites, stacks = find_sites(model, ALL_KINDS), stacks_of(model)
        return cls(
            HeadMap({site: torch.ones(site.heads, dtype=torch.bool) for site in sites}),
            {stack: (True,) * len(own.layers) for stack, own in stacks.items()},
        )

    def without(self, closed: HeadMap | None = None, layers: StackLayers | None = None) -> "Subnet":
        """What stays where these units close and these layers are dropped too. closed: True where a unit
        closes; sites that it lacks keep theirs. Raises ValueError at a site, layer or number of units that
        there is not."""
        for stack, numbers in (layers or {}).items():
            if isinstance(numbers, int | str):
                raise ValueError(f"layers: expected a list of numbers for {stack!r}, got {numbers!r}")
        gone = {stack: set(numbers) for stack, numbers in (layers or {}).items()}
        for stack, numbers in gone.items():
            if strange := [each for each in numbers if each not in range(len(self.layers.get(stack, ())))]:
                known = [f"{own} 0 to {len(row) - 1}" for own, row in self.layers.items()] or ["none"]
                raise ValueError(
                    f"there is no {stack} layer {strange[0]!r} to drop; known: {' and '.join(known)}"
                )
        if closed is not None and any(row.dtype != torch.bool for row in closed.values()):
            raise ValueError(
                "closed must hold bools, True where a unit closes, as scores.lowest(k) gives them"
            )
        for site in closed or ():
            if site not in self.units:
                raise ValueError(f"there is no site {site.name} of {site.heads} units; known: {self.words}")
        rows = {
            stack: tuple(stays and number not in gone.get(stack, ()) for number, stays in enumerate(row))
            for stack, row in self.layers.items()
        }
        units = {
            site: row
            & (site.layer not in gone.get(site.stack, ()))
            & (~closed[site] if closed is not None and site in closed else row)
            for site, row in self.units.items()
        }
        return Subnet(HeadMap(units), rows)

    # ---------------------------------------------------------------- what it says

    def has(self, site: HeadSite) -> bool:
        """Whether the layer of a site stays."""
        row = self.layers.get(site.stack)
        return row is None or (site.layer < len(row) and row[site.layer])

    @property
    def closing(self) -> HeadMap:
        """True at the units that close in the layers that stay."""
        return HeadMap({site: ~row for site, row in self.units.items() if self.has(site)})

    @property
    def dropped(self) -> dict[str, list[int]]:
        """Stack -> the numbers of its dropped layers, for each stack that loses some."""
        return {
            stack: [number for number, stays in enumerate(row) if not stays]
            for stack, row in self.layers.items()
            if not all(row)
        }

    def moved(self, site: HeadSite, units: int) -> HeadSite:
        """A site that stays, as it is named once layers are dropped, with so many units."""
        number = sum(self.layers[site.stack][: site.layer]) if site.stack in self.layers else site.layer
        return replace(site, layer=number, heads=units)

    @property
    def kept(self) -> "Subnet":
        """What `of` gives once the rest is removed: all of it stays, numbered anew. (An attention that cannot
        run without heads keeps some, whose outputs are 0; `remove` warns of it.)"""
        units = {
            self.moved(site, int(row.sum())): row[row] for site, row in self.units.items() if self.has(site)
        }
        return Subnet(HeadMap(units), {stack: (True,) * sum(row) for stack, row in self.layers.items()})

    @property
    def words(self) -> str:
        """One line, such as "24 of 48 heads, 512 of 1,536 neurons, 5 of 6 layers"; of two stacks, "6 of 6
        encoder and 4 of 6 decoder layers"."""
        several = len(self.layers) > 1
        stacks = [f"{sum(row)} of {len(row)}{f' {stack}' * several}" for stack, row in self.layers.items()]
        return ", ".join([self.units.words] + [f"{' and '.join(stacks)} layers"] * bool(stacks))

    def to_json(self) -> dict[str, Any]:
        """version, and for each site and each stack which units and layers stay, of how many."""
        return {
            "version": 1,
            "sites": {site.name: stays_of(row.tolist()) for site, row in self.units.items()},
            "layers": {stack: stays_of(row) for stack, row in self.layers.items()},
        }

    @classmethod
    def from_json(cls, content: Any) -> "Subnet":
        """Of what `to_json` gave. Raises ValueError at anything else."""
        known = content if isinstance(content, dict) and content.get("version") == 1 else {}
        sites, layers = known.get("sites"), known.get("layers")
        if not (isinstance(sites, dict) and isinstance(layers, dict)):
            raise ValueError(
                f"expected a subnet of version 1, with `sites` and `layers`, got {str(content)[:60]}"
            )
        rows = {name: torch.tensor(checked_row(name, each), dtype=torch.bool) for name, each in sites.items()}
        units = HeadMap({HeadSite.parse(name, len(row)): row for name, row in rows.items()})
        return cls(units, {name: checked_row(name, each) for name, each in layers.items()})

    # ---------------------------------------------------------------- what it does to a model

    @contextmanager
    def closed(self, model: nn.Module) -> Iterator[None]:
        """Within the context closed units give nothing and dropped layers are skipped; afterwards the model
        is, bit for bit, as it was. Raises ValueError at a model with gates, or one that it does not fit."""
        self.check(model)
        outputs = closing_outputs(model, self.closing).values()
        before = [output.weight.clone() for output in outputs]
        with skipped(model, self.dropped):
            try:
                for output in outputs:
                    output.close()
                yield
            finally:
                for output, weight in zip(outputs, before, strict=True):
                    output.weight.copy_(weight)

    def remove(self, model: nn.Module, *, inputs: Inputs | None = None) -> None:
        """Take the rest out of the model, in place. inputs: as `drop_layers` takes them. Raises ValueError as
        `closed`, `remove` and `drop_layers` do, and leaves the model as it was."""
        self.check(model)
        put_back = memory_of(model)
        try:
            drop_layers(model, self.dropped, inputs=inputs)
            remove(model, self.moved_closing, inputs=inputs)
        except ValueError:
            put_back()
            raise

    @contextmanager
    def removed(self, model: nn.Module) -> Iterator[None]:
        """Within the context the rest is taken out as `remove` does it, without a proof; afterwards the model
        is as it was, with the parameters that it had. Raises ValueError as `check` does."""
        self.check(model)
        put_back = memory_of(model)
        try:
            self.cut(model)
            yield
        finally:
            put_back()

    def cut(self, model: nn.Module) -> None:
        """`remove` without its checks and proofs."""
        cut_layers(model, self.dropped)
        cut_heads(model, self.moved_closing)

    @property
    def moved_closing(self) -> HeadMap:
        """`closing`, with sites named as they are once layers are dropped."""
        return HeadMap({self.moved(site, site.heads): row for site, row in self.closing.items()})

    def parameters(self, model: nn.Module) -> int:
        """The number of parameters that the model has with this alone left; gates are not counted. The model
        stays as it is. Raises ValueError as `remove` does."""
        tensors = *model.parameters(), *model.buffers()
        bare = copy.deepcopy(
            model, {id(each): nn.Parameter(torch.empty_like(each, device="meta"), False) for each in tensors}
        )
        detach(bare)
        self.check(bare)
        self.cut(bare)
        return sum(parameter.numel() for parameter in bare.parameters())

    def check(self, model: nn.Module) -> None:
        """Raises ValueError unless the model has no gates, and these sites and layers."""
        check_ungated(model)
        now = Subnet.of(model)
        for site in self.units:
            if site not in now.units:
                raise ValueError(
                    f"the model has no {site.name} of {site.heads} units, so this is no part of it; it has "
                    f"{now.words}"
                )
        for stack, row in self.layers.items():
            if len(row) != len(now.layers.get(stack, ())):
                raise ValueError(f"the model has not {len(row)} {stack} layers; it has {now.words}")


def stays_of(row: Any) -> dict[str, Any]:
    return {"of": len(row), "stay": [number for number, stays in enumerate(row) if stays]}


def checked_row(name: Any, content: Any) -> tuple[bool, ...]:
    """The bools of what `stays_of` gave. Raises ValueError at anything else."""
    known = content if isinstance(content, dict) else {}
    of, stay = known.get("of"), known.get("stay")
    if type(of) is not int or not (0 <= of <= LARGEST_SITE and is_rising(stay) and all(n < of for n in stay)):
        raise ValueError(
            f"expected {str(name)[:60]!r} to be like {{'of': 4, 'stay': [0, 2]}}, numbers below `of` in "
            f"order, got {str(content)[:60]}"
        )
    row = torch.zeros(of, dtype=torch.bool)
    row[stay] = True
    return tuple(row.tolist())
