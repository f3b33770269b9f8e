"""headgates: learned gates and masks on the attention heads of a Transformer, and the removal of closed heads
from its weights.

One idea: a gate xi multiplies one head's output, at the input of the output projection W_O.

    bank = attach(model, heads=24)           # Hard Concrete gates on every head, of which 24 will stay
    loss = cross_entropy + bank.loss(step)   # in the training loop
    remove(model, bank)                      # the gates are off, the closed heads' weights gone
    save_pruned(model, "pruned")             # load_pruned("pruned") reads it again

`detach(model)` takes gates off without a trace. `Subnet` says which heads, neurons and layers stay.
"""

from .bank import GateBank
from .base import HeadGate
from .blocks import WIDTH
from .budget import GateWatch, LambdaBudget, Limit, NotANumber, TargetBudget
from .hard_concrete import HardConcrete
from .headmap import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite
from .mask import HeadMask, gate_heads
from .optimizer import CollectedGradients, GateOptimizer
from .pruned_folder import load_pruned, save_pruned
from .reconstruct import Refit, fold_mean, reconstruct, zero_heads
from .registry import GATES
from .remove import Removed, heads_left, remove, set_heads_left
from .resample import resampled
from .rules import SITE_RULES
from .site_rule import SiteRule
from .sites import attach, detach, find_sites, reattach
from .subnet import Subnet
from .subset import Subset

__all__ = [
    "ALL_KINDS",
    "FFN_KINDS",
    "GATES",
    "KINDS",
    "SITE_RULES",
    "CollectedGradients",
    "GateBank",
    "GateOptimizer",
    "GateWatch",
    "HardConcrete",
    "HeadGate",
    "HeadMap",
    "HeadMask",
    "HeadSite",
    "LambdaBudget",
    "Limit",
    "NotANumber",
    "Refit",
    "Removed",
    "SiteRule",
    "Subnet",
    "Subset",
    "TargetBudget",
    "WIDTH",
    "attach",
    "detach",
    "find_sites",
    "fold_mean",
    "gate_heads",
    "heads_left",
    "load_pruned",
    "reattach",
    "remove",
    "reconstruct",
    "resampled",
    "save_pruned",
    "set_heads_left",
    "zero_heads",
]
