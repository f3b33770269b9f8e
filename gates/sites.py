"""Where the heads of a model are, and how a gate is put on them and taken off again.

A site is found by its attention class's name in `SITE_RULES` and by its path in the model. To gate another attention class, add one line:

    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", way="hook")   # it calls its out_proj, whose input is then scaled
    SITE_RULES["MyAttention"] = SiteRule(heads="num_heads", slot="gate")  # its forward says z = gate_heads(z, self.gate()) itself

So that heads of it can be removed too, the rule names its projections where they are not q_proj, k_proj, v_proj and out_proj.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from .bank import GateBank
from .headmap import HeadMap, HeadSite, check_kinds
from .hold import WAYS, SiteRule, attribute, hold_of, nearest
from .registry import GATES

BANK = "head_gates"  # the model's attribute that holds the bank while attached
_PATH = re.compile(r"(?:.*\.)?(encoder|decoder)\.layers\.(\d+)\.([a-z_]*attention|[a-z_]*attn)")


SITE_RULES: dict[str, SiteRule] = {
    "MultiHeadAttention": SiteRule(heads="heads", slot="gate", zero_heads=True),
    # torch's: it reads out_proj.weight and never calls out_proj; its forward needs heads * width = embed_dim, so no head can be removed
    "MultiheadAttention": SiteRule(heads="num_heads", way="weight", q="", k="", v=""),
}


def rule_of(module: nn.Module) -> SiteRule:
    """The rule of a module that `find_sites` found."""
    return SITE_RULES[type(module).__name__]


def find_sites(model: nn.Module) -> dict[HeadSite, nn.Module]:
    """Every attention layer of the model that a rule knows, in the order enc-self, dec-self, cross.

    Raises ValueError if there is none, or where a path does not say its layer or a rule does not name the number of heads."""
    found: dict[HeadSite, nn.Module] = {}
    for path, module in model.named_modules():
        rule = SITE_RULES.get(type(module).__name__)
        if rule is None:
            continue
        match = _PATH.fullmatch(path)
        if match is None:
            raise ValueError(f"cannot tell the layer of the attention at {path!r}; expected a path such as encoder.layers.0.self_attention")
        stack, layer, name = match[1], int(match[2]), match[3]
        # multihead_attn: the cross-attention of nn.TransformerDecoderLayer
        cross = "cross" in name or "encoder" in name or (stack, name) == ("decoder", "multihead_attn")
        kind = "cross" if cross else ("enc-self" if stack == "encoder" else "dec-self")
        heads = attribute(module, rule.heads, "`heads`")
        if not isinstance(heads, int):
            raise ValueError(f"{rule.heads!r}, `heads` in the SiteRule of {type(module).__name__}, is no number: {type(heads).__name__}")
        site = HeadSite.at(kind, layer, heads)
        if site in found:
            raise ValueError(f"{path!r} and another attention are both {site.name}; gate the two models one by one")
        found[site] = module
    if not found:
        classes = sorted({type(module).__name__ for module in model.modules() if "attention" in type(module).__name__.lower()})
        raise ValueError(
            f"no attention in {type(model).__name__} has a rule (attention classes seen: {classes or 'none'}); "
            f"add one to SITE_RULES, such as SiteRule(heads='num_heads', way='hook'). Known: {sorted(SITE_RULES)}"
        )
    return dict(sorted(found.items()))


def attach(model: nn.Module, gate: str = "l0", kinds: Iterable[str] | None = None, **options: Any) -> GateBank:
    """Put a gate on every head of the chosen kinds of attention (all unless named) and return them all as one bank.

    `options` go to the gate's class; one that is a HeadMap gives each site its own row. The bank becomes a submodule of the model.
    Raises ValueError, and leaves the model as it was, at an unknown gate or kind, an option the gate does not have, gates already attached,
    or a rule that does not fit its attention."""
    if gate not in GATES:
        raise ValueError(f"unknown gate {gate!r}{nearest(gate, list(GATES))}")
    if getattr(model, BANK, None) is not None or any(hold_of(module) is not None for module in model.modules()):
        raise ValueError("the model already has gates; detach(model) takes them off")
    chosen = check_kinds(kinds)
    modules = {site: module for site, module in find_sites(model).items() if site.kind in chosen and site.heads > 0}
    if not modules:
        raise ValueError(f"the model has no heads of the kinds {chosen}")
    for site, module in modules.items():
        rule = rule_of(module)
        WAYS[rule.way].check(module, rule, site.heads)
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
    hold_heads(model, bank, modules)
    return bank


def detach(model: nn.Module) -> None:
    """Take all gates off: the model's state dict and outputs are as before `attach`. Does nothing on a model without gates."""
    bank = getattr(model, BANK, None)
    if bank is None:
        return
    delattr(model, BANK)
    bank.handle.remove()
    for module in list(model.modules()):
        if (hold := hold_of(module)) is not None:
            hold.release()


def reattach(model: nn.Module, bank: GateBank) -> None:
    """Put a bank that `detach` took off the model back on it. Raises ValueError if the model has gates now."""
    if getattr(model, BANK, None) is not None:
        raise ValueError("the model already has gates; detach(model) takes them off")
    hold_heads(model, bank, find_sites(model))


def hold_heads(model: nn.Module, bank: GateBank, modules: Mapping[HeadSite, nn.Module]) -> None:
    """Make the bank a submodule of the model, and its gates scale their heads, each in the way of its rule."""
    setattr(model, BANK, bank)
    bank.handle = model.register_forward_pre_hook(bank.before_forward)
    for site, gate in bank.items():
        rule = rule_of(modules[site])
        WAYS[rule.way](modules[site], rule, gate).take()
