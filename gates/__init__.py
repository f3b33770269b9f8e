"""headgates: gates on attention heads.   One idea: a gate xi multiplies one head's output, at the input of the output projection W_O.

    bank = attach(model, gate="l0")          # Hard Concrete gates on every head
    loss = cross_entropy + lam * bank.penalty()
    closed = bank.closed()                   # HeadMap of bool
    detach(model)                            # the state dict is as it was
"""

from .bank import GateBank
from .base import HeadGate
from .budget import GateWatch, LambdaBudget, NotANumber
from .hard_concrete import HardConcrete
from .headmap import KINDS, HeadMap, HeadSite
from .mask import HeadMask, gate_heads
from .registry import GATES
from .sites import SITE_RULES, SiteRule, attach, detach, find_sites

__all__ = [
    "GATES",
    "KINDS",
    "SITE_RULES",
    "GateBank",
    "GateWatch",
    "HardConcrete",
    "HeadGate",
    "HeadMap",
    "HeadMask",
    "HeadSite",
    "LambdaBudget",
    "NotANumber",
    "SiteRule",
    "attach",
    "detach",
    "find_sites",
    "gate_heads",
]
