"""The kinds of gate by name: to add one, write its file and one line here (a contract test loops over this
table). A class of another package is named "module:class"."""

from importlib import import_module
from typing import Any

from .base import HeadGate
from .hard_concrete import HardConcrete
from .mask import HeadMask
from .names import check_name, nearest
from .subset import Subset

GATES: dict[str, type[HeadGate]] = {"l0": HardConcrete, "mask": HeadMask, "subset": Subset}


def gate_class(gate: str | type[HeadGate]) -> type[HeadGate]:
    """The class of a gate: itself, of GATES, or that of "module:class". Raises ValueError where there is
    none."""
    found: Any = gate
    if isinstance(gate, str) and ":" not in gate:
        check_name("gate", gate, list(GATES))
        found = GATES[gate]
    elif isinstance(gate, str):
        path, _, name = gate.partition(":")
        try:
            module = import_module(path)
        except (ImportError, ValueError) as error:
            raise ValueError(f"gate {gate!r}: the module {path!r} cannot be imported ({error})") from error
        if not hasattr(module, name):
            raise ValueError(f"gate {gate!r}: {path} has no {name!r}{nearest(name, list(vars(module)))}")
        found = getattr(module, name)
    if not (isinstance(found, type) and issubclass(found, HeadGate)):
        raise ValueError(
            f"expected a gate of {', '.join(GATES)}, a subclass of headgates.gates.HeadGate, or its "
            f"'module:class', got {gate!r}"
        )
    return found
