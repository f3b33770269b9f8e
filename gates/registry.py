"""The kinds of gate by name: to add one, write its file and one line here (a contract test loops over this
table)."""

from .base import HeadGate
from .hard_concrete import HardConcrete
from .mask import HeadMask
from .subset import Subset

GATES: dict[str, type[HeadGate]] = {"l0": HardConcrete, "mask": HeadMask, "subset": Subset}
