"""Where the heads of a model are, and its feed-forward neurons, and how a gate is put on them and taken off
again.

A site is found by its class's name in `SITE_RULES` or by its layout, and by its path in the model.
"""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import nn

from .attach_modes import ATTACH_MODES, check_model, check_ungated, holds
from .bank import GateBank
from .base import HeadGate
from .budget import LambdaBudget, TargetBudget
from .feed_forward import feed_forward_kinds, stack_in
from .headmap import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, check_kinds, is_of
from .names import check_numeric
from .prices import unit_prices
from .registry import gate_class
from .rules import SITE_RULES, has_own_rule, is_tested, known_rule, rule_of
from .site_rule import SiteRule, attribute, execution_device, group_of, heads_of
from .targets import check_targets, targets_of
from .torch_attention import nesting
from .unknown import line_to_add, unknown_attentions, unknown_feed_forwards

BANK = "head_gates"  # the model's attribute that holds the bank while attached
# the first number counts, as T5 numbers the parts of a layer too
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)(?:$|\.(?:\w+\.)*[A-Za-z_]\w*$)")


def find_sites(model: nn.Module, kinds: Iterable[str] | None = None) -> dict[HeadSite, nn.Module]:
    """Every layer of these kinds (attentions unless named) that a rule or a layout fits, in the order
    enc-self, dec-self, cross, enc-ffn, dec-ffn.

    Warns of attentions without a rule beside them; `warn_of_neurons` does of feed-forward layers. Raises
    ValueError if there is neither an attention with a rule nor a feed-forward layer that is asked for, or
    where a rule does not name the number of heads."""
    check_model(model)
    chosen = check_kinds(kinds)
    modules = dict(model.named_modules())
    rules = {path: rule for path, module in modules.items() if (rule := known_rule(module)) is not None}
    attentions = [path for path, rule in rules.items() if not rule.inner]
    kind_at = {path: kind_of(path, modules, rules[path]) for path in attentions}
    if not set(FFN_KINDS).isdisjoint(chosen):
        own = {path for path in rules if has_own_rule(modules[path])}
        kind_at |= feed_forward_kinds(modules, rules, own, kind_at)
    numbers = layer_numbers(kind_at)
    towers = towers_of({path: (kind, numbers[path]) for path, kind in kind_at.items()})
    found: dict[HeadSite, nn.Module] = {}
    twice: set[HeadSite] = set()
    for path, kind in kind_at.items():
        site = HeadSite.at(kind, numbers[path], 0, tower=towers[path])
        if site in found and kind in KINDS:
            raise ValueError(
                f"{path!r} and another attention are both {site.name}, as one layer has several; gate the "
                "parts of the model that have one each"
            )
        twice |= {site} & found.keys()
        found[site] = modules[path]
    # several feed-forward layers in one layer cannot be distinguished
    found = {
        replace(site, heads=heads_of(module, rule_of(module))): module
        for site, module in found.items()
        if site not in twice
    }
    unknown = unknown_attentions(model, attentions)
    lines = "; ".join(map(line_to_add, unknown))
    if not found:
        seen = sorted(type(module).__name__ for module in unknown) or "none"
        raise ValueError(
            f"no attention in {type(model).__name__} has a rule (attention classes seen: {seen}); add one "
            "to SITE_RULES: "
            f"{lines or 'SITE_RULES[CLASS NAME] = SiteRule(heads=..., mode=...)'}. "
            f"Known: {sorted(SITE_RULES)}"
        )
    if unknown:
        names = ", ".join(type(module).__name__ for module in unknown)
        warnings.warn(
            f"the heads of {names} are left alone, as no rule knows them; to find them, add: {lines}",
            stacklevel=3,
        )
    return {site: found[site] for site in sorted(found) if site.kind in chosen}


def layer_numbers(sites: Iterable[str]) -> dict[str, int]:
    """The number of the layer that each path lies in: as its list counts, or by its place among the paths
    that are alike but for numbers, where the list has an odd name or stands in another, as a stage's does."""
    alike: dict[str, list[str]] = {}  # a path without its numbers -> all of its paths
    for path in sites:
        alike.setdefault(re.sub(r"\d+", "#", path), []).append(path)
    found: dict[str, int] = {}
    for paths in alike.values():
        matches = [_LAYER.search(path) for path in paths]
        numbers = {int(match[1]) for match in matches if match}
        for place, (path, match) in enumerate(zip(paths, matches, strict=True)):
            found[path] = int(match[1]) if match and len(numbers) == len(paths) else place
    return found


def towers_of(places: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """The tower of each path: "" where kind and number tell the attentions apart, else as much of the paths
    above their lists as does, or all of it. places: path -> kind and number of its layer."""
    above = {path: re.split(r"\.\d+\.", path)[0].split(".") for path in places}
    above = {path: each[:-1] if each == path.split(".") else each for path, each in above.items()}
    attentions = [path for path, (kind, _) in places.items() if kind in KINDS]
    towers = dict.fromkeys(places, "")
    for depth in range(1 + max(map(len, above.values()), default=0)):
        towers = {path: ".".join(each[:depth]) for path, each in above.items()}
        if len({(towers[path], places[path]) for path in attentions}) == len(attentions):
            break
    return towers


def warn_of_neurons(model: nn.Module, kinds: Iterable[str] | None, *, stacklevel: int = 3) -> None:
    """Warn of feed-forward layers that are left alone where their neurons are asked for."""
    if not set(FFN_KINDS).isdisjoint(check_kinds(kinds)) and (said := neurons_left_alone(model)):
        warnings.warn(said, stacklevel=stacklevel)


def neurons_left_alone(model: nn.Module) -> str:
    """What keeps the neurons of feed-forward layers from being sites, class by class; "" where all are."""
    return "; ".join(unknown_feed_forwards(model, find_sites(model, ALL_KINDS)))


def kind_of(path: str, modules: Mapping[str, nn.Module], rule: SiteRule) -> str:
    """enc-self, dec-self or cross: by the attention's own name, its rule, that it is a decoder's, its path,
    the classes around it, its `is_causal`, or that it takes a cache, in this order."""
    *parents, name = path.split(".")
    around = [type(modules[".".join(parents[:depth])]).__name__ for depth in range(len(parents), -1, -1)]
    stack = stack_in(path)
    if "pool" in around[0].lower():  # a learned query reads the encoder's outputs
        return "cross"
    # multihead_attn: the cross-attention of nn.TransformerDecoderLayer
    in_decoder = stack == "decoder" or "Decoder" in around[0]
    if re.search("cross|encoder|encdec", name.lower()) or (name == "multihead_attn" and in_decoder):
        return "cross"
    if rule.causal:
        return "dec-self" if attribute(modules[path], rule.causal, "`causal`") else "enc-self"
    if any(getattr(each, "is_decoder", None) is True for each in modules[path].modules()):
        return "dec-self"  # though it may stand in what is called an encoder
    for name_of in [stack, type(modules[path]).__name__, *around]:
        if re.search("decoder|causal", name_of.lower()):
            return "dec-self"
        if "encoder" in name_of.lower():
            return "enc-self"
    if isinstance(causal := getattr(modules[path], "is_causal", None), bool):
        return "dec-self" if causal else "enc-self"
    if {"layer_past", "past_key_values"} & signature(type(modules[path]).forward).parameters.keys():
        return "dec-self"  # it keeps keys for the words to come
    raise ValueError(
        f"cannot tell whether the attention at {path!r} is an encoder's or a decoder's: set is_causal = "
        f"False (an encoder's) or True on each {type(modules[path]).__name__}, or name the attribute that is "
        "true in a decoder, as in SiteRule(..., causal='is_causal')"
    )


def attach(
    model: nn.Module,
    gate: str | type[HeadGate] = "l0",
    kinds: Iterable[str] | None = None,
    *,
    heads: int | Mapping[str, int] | None = None,
    neurons: int | None = None,
    lam: float | None = None,
    warmup: int = 0,
    share: str | None = None,
    multiple: int = 1,
    **options: Any,
) -> GateBank:
    """Put a gate on every head of the chosen kinds and return them all as one bank: of attentions unless
    kinds are named, on every feed-forward neuron too with "ffn" or "all".

    gate: of GATES ("l0", "mask", "subset"), a subclass of HeadGate, or its "module:class". heads, neurons:
    how many stay open, heads also by kind; the gates keep as many in the end, and `bank.loss(step)` leads
    there over `warmup` steps. Kinds are then those that have a number. lam: instead, a price for each open
    head, in the unit of the loss, by which `bank.loss(step)` lets gates find the number; it grows over
    `warmup` steps.
    share: "head", a gate a head, or "group", one for all heads that share a key head, as such heads can only
    be removed together. The default is "group" for learned gates and "head" for masks. multiple: learned
    gates keep as many neurons of a layer as a multiple of it says, or all. `options` go to the gate's class;
    one that is a HeadMap gives each site its own row, and one by kind, such as {"enc-self": 4, "cross": 12}
    or {"heads": 24, "ffn": 768}, each kind its own value: gates of different kinds, or of different words for
    several, are then sampled apart. The bank becomes a submodule of the model. Raises ValueError, and leaves
    the model as it was, at an unknown gate or kind, an option that the gate does not have, gates already
    attached, or a rule that does not fit its attention."""
    cls = gate_class(gate)
    if kinds is None and isinstance(heads, Mapping):
        kinds = [*heads, *([] if neurons is None else ["ffn"])]
    elif kinds is None and neurons is not None:
        kinds = FFN_KINDS if heads is None else ALL_KINDS
    chosen = check_kinds(kinds)
    targets = targets_of(chosen, heads, neurons)
    budget = budget_of(cls, targets, lam, warmup)
    multiple = check_numeric("multiple", multiple, whole=True, least=1)
    if share not in ("head", "group", None):
        raise ValueError(
            "expected share='head', a gate for each head, or share='group', one for those of one key head; "
            f"got {share!r}"
        )
    check_ungated(model)
    by_group = share == "group" or (share is None and not cls.given)
    with_ffn = not set(FFN_KINDS).isdisjoint(chosen)
    found = find_sites(model, ALL_KINDS if with_ffn else chosen)  # a neuron's price is a part of a head's
    modules = {site: each for site, each in found.items() if site.heads and site.kind in chosen}
    if not modules:
        said = neurons_left_alone(model) if with_ffn else ""
        raise ValueError(f"the model has no heads of the kinds {chosen}{said and '; '}{said}")
    if targets is not None:
        check_targets(targets, modules)
    warn_of_neurons(model, chosen)
    gates = {}
    for site, module in modules.items():
        rule = rule_of(module)
        ATTACH_MODES[rule.mode].check(module, rule, site.heads)
        group = group_of(module, rule) if by_group else 1
        own = {name: of_site(name, value, site) for name, value in options.items()}
        if targets is not None:
            own["target_heads"] = of_site("heads", targets, site) // group
        try:
            gates[site] = cls(site.heads // group, **own)
        except TypeError as error:
            raise ValueError(
                f"gate {gate!r} cannot be made with the options {sorted(own)}: {error}"
            ) from error
        if rule.inner:
            gates[site].multiple = multiple
    words = next((list(value) for value in (targets, *options.values()) if isinstance(value, dict)), [""])
    groups = {site: word_of(site, words) or "" for site in gates}
    prices = unit_prices(found) if with_ffn else None
    kind = gate if isinstance(gate, str) else cls.__name__
    bank = GateBank(gates, kind, model, groups=groups, prices=prices)
    bank.budget = budget
    bank.to(device_of(model)).train(model.training)
    hold_heads(model, bank, modules)
    return bank


def budget_of(
    cls: type[HeadGate], targets: int | dict[str, int] | None, lam: float | None, warmup: int
) -> LambdaBudget | TargetBudget | None:
    """What leads the gates to their number, or the price of each; None where nothing is said. Gates that keep
    the number in every sample cost nothing. Raises ValueError at both."""
    if targets is None:
        return None if lam is None else LambdaBudget(lam, warmup)
    if lam is not None:
        raise ValueError(
            "expected heads= and neurons=, how many stay, or lam=, the price of each that stays; got both"
        )
    return LambdaBudget(0.0, warmup) if cls.keeps_target else TargetBudget(targets, warmup)


def device_of(model: nn.Module) -> torch.device:
    """Where batches go to and gates are: with the model's first weights or, where accelerate has offloaded
    these, where it runs them. Each xi goes to the heads that it multiplies, so one device does for a model on
    several."""
    devices = [parameter.device for parameter in model.parameters()]
    on = [device for device in devices if device.type != "meta"]
    runs = (device for each in model.modules() if (device := execution_device(each)) is not None)
    return torch.device(next(iter([*on, *runs, *devices]), "cpu"))


def of_site(name: str, value: Any, site: HeadSite) -> Any:
    """What an option of `attach` is for one site. Raises ValueError where it has nothing for it."""
    if isinstance(value, HeadMap):
        if site not in value:
            raise ValueError(
                f"{name} has no row of {site.heads} heads for {site.name}; it was made for another model or "
                "other kinds"
            )
        return value[site]
    if isinstance(value, dict):
        word = word_of(site, value)
        if word is None:
            raise ValueError(f"{name} has no value for {site.kind}; give one for each kind that has gates")
        return value[word]
    return value


def word_of(site: HeadSite, words: Iterable[str]) -> str | None:
    """The word that stands for the site's kind, None where none does."""
    return next((word for word in words if is_of(site.kind, word)), None)


def detach(model: nn.Module) -> None:
    """Take all gates off: the model's state dict and outputs are as before `attach`. Does nothing on a model
    without gates."""
    check_model(model)
    bank = getattr(model, BANK, None)
    if bank is None:
        return
    delattr(model, BANK)
    bank.handle.remove()
    for encoder in bank.padded:
        encoder.use_nested_tensor = True
    for hold in holds(model):
        hold.release()


def reattach(model: nn.Module, bank: GateBank) -> None:
    """Put a bank that `detach` took off the model back on it. Raises ValueError if the model has gates
    now."""
    check_ungated(model)
    hold_heads(model, bank, find_sites(model, ALL_KINDS))


def hold_heads(model: nn.Module, bank: GateBank, modules: Mapping[HeadSite, nn.Module]) -> None:
    """Make the bank a submodule of the model, and its gates scale their heads, each by the attach mode of its
    rule."""
    setattr(model, BANK, bank)
    bank.keeps_inputs = not all(map(is_tested, modules.values()))  # for proof.py
    bank.handle = model.register_forward_pre_hook(bank.before_forward, with_kwargs=True)
    for site, gate in bank.items():
        rule = rule_of(modules[site])
        # what OPT's layers and experts of a decoder put one after the other are sentences of one length
        flat = bool(rule.inner) and (site.kind == "dec-ffn" or hasattr(modules[site], "self_attn"))
        ATTACH_MODES[rule.mode](modules[site], rule, gate, flat=flat).take()
    # hooks do not read nested tensors
    hooked = [modules[site] for site, _ in bank.items() if rule_of(modules[site]).mode == "hook"]
    bank.padded = nesting(model, hooked)
    for encoder in bank.padded:
        encoder.use_nested_tensor = False
