"""All the gates of a model, as one module: what `attach` returns."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .base import HeadGate
from .hard_concrete import HardConcrete
from .headmap import HeadMap, HeadSite, write_json
from .mask import HeadMask


class GateBank(nn.Module):
    """Site -> gate. While attached it is a submodule of the model, so `.to()`, distributed training and trainers see it."""

    def __init__(self, gates: Mapping[HeadSite, HeadGate], kind: str, model: nn.Module):
        super().__init__()
        self.kind = kind
        self._model = [model]  # in a list: the bank is a submodule of the model, not the other way round
        self.sites = tuple(sorted(gates))
        # module names may not hold a dot
        self.gates = nn.ModuleDict({site.name.replace(".", "/"): gates[site] for site in self.sites})

    def items(self) -> Iterator[tuple[HeadSite, HeadGate]]:
        for site, gate in zip(self.sites, self.gates.values(), strict=True):
            assert isinstance(gate, HeadGate)
            yield site, gate

    def penalty(self) -> Tensor:
        """Expected number of open heads over all gated sites: a scalar with a gradient, unit: heads."""
        return torch.stack([gate.penalty() for _, gate in self.items()]).sum()

    def _map(self, method: str) -> HeadMap:
        with torch.no_grad():
            return HeadMap({site: getattr(gate, method)() for site, gate in self.items()})

    def values(self) -> HeadMap:
        """xi at test time."""
        return self._map("test_value")

    def open_prob(self) -> HeadMap:
        """P(xi > 0)."""
        return self._map("open_prob")

    def open(self) -> HeadMap:
        """True where the head stays once the gates are made exactly 0 or 1."""
        return self._map("decision")

    def closed(self) -> HeadMap:
        """True where the head goes once the gates are made exactly 0 or 1."""
        return ~self.open()

    def settle(self) -> None:
        """Make learned gates exactly 0 or 1 for the rest of training. Raises ValueError if these gates are not learned."""
        for site, gate in self.items():
            if not isinstance(gate, HardConcrete):
                raise ValueError(f"settle needs learned gates, those of {site.name} are {type(gate).__name__}")
            gate.settle()

    def assign(self, xi: Mapping[HeadSite, Any]) -> None:
        """Give the masks of a bank of `gate="mask"` new values; sites not named stay as they are."""
        gates = dict(self.items())
        for site, row in xi.items():
            if site not in gates:
                raise ValueError(f"these gates have no site {site.name} of {site.heads} heads; known: {[known.name for known in gates]}")
            gate = gates[site]
            if not isinstance(gate, HeadMask):
                raise ValueError(f"assign needs gates of kind 'mask', these are {self.kind!r}")
            gate.assign(row)

    def param_groups(self, *, lr: float, gate_lr: float = 0.05, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Two optimiser groups, the model's weights and the gates (no weight decay), no parameter twice, frozen ones left out."""
        mine = [parameter for parameter in self.parameters() if parameter.requires_grad]
        ids = {id(parameter) for parameter in mine}
        others = [parameter for parameter in self._model[0].parameters() if parameter.requires_grad and id(parameter) not in ids]
        groups: list[dict[str, Any]] = [{"params": others, "lr": lr, "weight_decay": weight_decay, "name": "model"}]
        if mine:
            groups.append({"params": mine, "lr": gate_lr, "weight_decay": 0.0, "name": "gates"})
        return [group for group in groups if group["params"]]

    def to_json(self) -> dict[str, Any]:
        """Per site and head: log_alpha (of learned gates), open_prob, value, open."""
        sites = {}
        for site, gate in self.items():
            columns = {name: column.tolist() for name, column in gate.numbers().items()}
            sites[site.name] = [{"head": head, **{name: column[head] for name, column in columns.items()}} for head in range(site.heads)]
        return {"gate": self.kind, "sites": sites}

    def save(self, path: str | Path) -> None:
        write_json(path, self.to_json())
