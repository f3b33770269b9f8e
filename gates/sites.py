"""Where the heads of a model are, and how a gate is put on them and taken off again.

A site is found by its attention class's name in `SITE_RULES` and by its place in the model. To gate another attention class, give it a
slot (an attribute that holds a gate or None; multiply the heads' outputs with `gate_heads(z, gate())` when it is set) and add one line:

    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", slot="gate")

So that heads of it can be removed too, the rule names its projections where they are not q_proj, k_proj, v_proj and out_proj.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

from torch import nn

from .bank import GateBank
from .headmap import HeadMap, HeadSite, check_kinds
from .registry import GATES

BANK = "head_gates"  # the model's attribute that holds the bank while attached
_PLACE = re.compile(r"(?:.*\.)?(encoder|decoder)\.layers\.(\d+)\.([a-z_]*attention|[a-z_]*attn)")


@dataclass(frozen=True)
class SiteRule:
    """How one attention class is held. All but `slot` may lie deeper in the module: "output.dense"."""

    heads: str  # the attribute with the number of heads
    slot: str  # the one that holds a gate or None
    q: str = "q_proj"  # the projections; one name for all three where they are one weight, q's rows before k's before v's
    k: str = "k_proj"
    v: str = "v_proj"
    out: str = "out_proj"
    transposed: bool = False  # weights are (inputs, outputs), as those of GPT-2's Conv1D
    widths: tuple[str, ...] = ()  # attributes that hold heads * head width
    zero_heads: bool = False  # its forward works when no head is left


SITE_RULES: dict[str, SiteRule] = {"MultiHeadAttention": SiteRule(heads="heads", slot="gate", zero_heads=True)}


def rule_of(module: nn.Module) -> SiteRule:
    """The rule of a module that `find_sites` found."""
    return SITE_RULES[type(module).__name__]


def find_sites(model: nn.Module) -> dict[HeadSite, nn.Module]:
    """Every attention layer of the model that a rule knows, in the order enc-self, dec-self, cross. Raises ValueError if there is none."""
    found: dict[HeadSite, nn.Module] = {}
    for path, module in model.named_modules():
        rule = SITE_RULES.get(type(module).__name__)
        if rule is None:
            continue
        place = _PLACE.fullmatch(path)
        if place is None:
            raise ValueError(f"cannot tell the layer of the attention at {path!r}; expected a path such as encoder.layers.0.self_attention")
        stack, layer, name = place[1], int(place[2]), place[3]
        kind = "cross" if "cross" in name or "encoder" in name else ("enc-self" if stack == "encoder" else "dec-self")
        site = HeadSite.at(kind, layer, attrgetter(rule.heads)(module))
        if site in found:
            raise ValueError(f"{path!r} and another attention are both {site.name}; gate the two models one by one")
        found[site] = module
    if not found:
        classes = sorted({type(module).__name__ for module in model.modules() if "attention" in type(module).__name__.lower()})
        raise ValueError(
            f"no attention in {type(model).__name__} has a rule (attention classes seen: {classes or 'none'}); "
            f"add one to SITE_RULES in gates/sites.py. Known: {sorted(SITE_RULES)}"
        )
    return dict(sorted(found.items()))


def attach(model: nn.Module, gate: str = "l0", kinds: Iterable[str] | None = None, **options: Any) -> GateBank:
    """Put a gate on every head of the chosen kinds of attention (all unless named) and return them all as one bank.

    `options` go to the gate's class; one that is a HeadMap gives each site its own row. The bank becomes a submodule of the model.
    Raises ValueError at an unknown gate or kind, an option the gate does not have, or gates already attached."""
    if gate not in GATES:
        nearest = get_close_matches(gate, GATES, n=1)
        raise ValueError(f"unknown gate {gate!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else f"; known: {sorted(GATES)}"))
    if getattr(model, BANK, None) is not None:
        raise ValueError("the model already has gates; detach(model) takes them off")
    chosen = check_kinds(kinds)
    modules = {site: module for site, module in find_sites(model).items() if site.kind in chosen and site.heads > 0}
    if not modules:
        raise ValueError(f"the model has no heads of the kinds {chosen}")
    gates = {}
    for site in modules:
        for name, value in options.items():
            if isinstance(value, HeadMap) and site not in value:
                raise ValueError(f"{name} has no row of {site.heads} heads for {site.name}; it was made for another model or other kinds")
        own = {name: value[site] if isinstance(value, HeadMap) else value for name, value in options.items()}
        try:
            gates[site] = GATES[gate](site.heads, **own)
        except TypeError as error:
            raise ValueError(f"gate {gate!r} cannot be made with the options {sorted(options)}: {error}") from error
    device = next((parameter.device for parameter in model.parameters()), None)
    bank = GateBank(gates, gate, model).to(device).train(model.training)
    setattr(model, BANK, bank)
    for site, module in modules.items():
        # not registered a second time: the bank owns the gate, the slot only points to it
        object.__setattr__(module, rule_of(module).slot, gates[site])
    return bank


def detach(model: nn.Module) -> None:
    """Take all gates off: the model's state dict and outputs are as before `attach`. Does nothing on a model without gates."""
    if getattr(model, BANK, None) is None:
        return
    delattr(model, BANK)
    for module in find_sites(model).values():
        object.__setattr__(module, rule_of(module).slot, None)


def reattach(model: nn.Module, bank: GateBank) -> None:
    """Put a bank that `detach` took off the model back on it. Raises ValueError if the model has gates now."""
    if getattr(model, BANK, None) is not None:
        raise ValueError("the model already has gates; detach(model) takes them off")
    modules = find_sites(model)
    setattr(model, BANK, bank)
    for site, gate in bank.items():
        object.__setattr__(modules[site], rule_of(modules[site]).slot, gate)
