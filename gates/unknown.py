"""Attentions and feed-forward layers that no site rule knows: they are found by how they are named or built,
and named with the line to add."""

from collections.abc import Collection, Mapping
from itertools import combinations

from torch import nn

from .feed_forward import LayerPaths, in_attention
from .headmap import HeadSite
from .rules import known_rule, rule_of
from .site_rule import SiteRule, projection, sizes_of

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_OUT = (
    "out_proj",
    "o_proj",
    "c_proj",
    "out_lin",
    "wo",
    "o",
    "proj",
    "dense",
    "fc_out",
    "to_out",
)  # W_O as others call it


def unknown_attentions(model: nn.Module, known: Collection[str]) -> list[nn.Module]:
    """One attention of every class that has no rule, among those neither inside nor around an attention that
    has one. known: the paths of these."""
    attentions, found = set(known), dict[type, nn.Module]()
    around = {above for path in attentions for above in parents(path)}
    for path, module in model.named_modules():
        if path in around or not attentions.isdisjoint([path, *parents(path)]):
            continue
        named = "attention" in type(module).__name__.lower()
        if path and (named or (heads_name(module) and output_name(module))):
            found.setdefault(type(module), module)
    return list(found.values())


def parents(path: str) -> list[str]:
    """The paths of the modules that one lies in, without the model's own."""
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def heads_name(module: nn.Module) -> str:
    return next((name for name in _HEADS if isinstance(getattr(module, name, None), int)), "")


def output_name(module: nn.Module) -> str:
    children = dict(module.named_children())
    return next((name for name in _OUT if hasattr(children.get(name), "weight")), "")


def line_to_add(module: nn.Module) -> str:
    """The line of SITE_RULES for this class, as far as its attributes tell; dots where they do not."""
    out = output_name(module)
    words = [f'heads="{heads_name(module) or "..."}"', 'mode="hook"', f'out="{out or "..."}"']
    if hasattr(getattr(module, out, None), "nf"):  # Conv1D
        words.append("transposed=True")
    return f'SITE_RULES["{type(module).__name__}"] = SiteRule({", ".join(words)})'


# ---------------------------------------------------------------- feed-forward layers

Sizes = tuple[int, int]  # outputs and inputs


def unknown_feed_forwards(model: nn.Module, sites: Mapping[HeadSite, nn.Module]) -> list[str]:
    """For every class that looks like a feed-forward layer and is in none of the sites, why, with the line to
    add. Such are, of the lists of layers that have a site, the innermost modules that hold the weights of
    experts, or a weight and after it one that leads back to its inputs."""
    modules = dict(model.named_modules())
    paths = {module: path for path, module in modules.items()}
    attentions = {paths[module] for module in sites.values() if not rule_of(module).inner}
    layers = LayerPaths(attentions, (paths[module] for module in sites.values() if rule_of(module).inner))
    lists = {layers.list_of(paths[module]) for module in sites.values()} - {""}
    known = {part for module in sites.values() for part in projections_of(module)}
    found: dict[str, str] = {}
    waiting: dict[str, dict[str, Sizes]] = {}  # a path -> the weights below it that are in no pair, in order
    for path, module in reversed(modules.items()):
        if layers.list_of(path) not in lists or module in known or in_attention(path, modules, attentions):
            continue
        above, _, name = path.rpartition(".")
        weights = waiting.pop(path, {})
        if isinstance(module, nn.Linear) or hasattr(module, "nf"):
            weights = {"": sizes_of(module, SiteRule(heads="heads"))}
        if has_experts(module) or (pair := pair_in(weights)):
            found[type(module).__name__] = why_left_alone(module, [] if has_experts(module) else pair)
        elif path != layers.item_of(path):
            own = {f"{name}.{each}".rstrip("."): sizes for each, sizes in weights.items()}
            waiting[above] = {**own, **waiting.get(above, {})}
    return [found[name] for name in sorted(found)]


def projections_of(module: nn.Module) -> list[nn.Module]:
    rule = rule_of(module)
    return [projection(module, name) for name in (*rule.inputs, rule.out)] if rule.inner else []


def pair_in(weights: Mapping[str, Sizes]) -> list[str]:
    """Of weights in their order the first whose outputs another takes, all of them or half where the rest is
    a gate, that gives what the first took: its path, twice with a gate, and that of the other."""
    for (first, one), (last, other) in combinations(weights.items(), 2):
        if one[1] == other[0] and one[0] in (other[1], 2 * other[1]):
            return [first] * (one[0] // other[1]) + [last]
    return []


def has_experts(module: nn.Module) -> bool:
    """Whether it holds weights of three dimensions itself, one matrix an expert."""
    wide = [each for each in module.parameters(recurse=False) if each.dim() == 3 and min(each.shape) > 1]
    return len(wide) > 1


def why_left_alone(module: nn.Module, pair: list[str]) -> str:
    """What keeps the neurons of a feed-forward layer from being a site, with the line to add."""
    name = type(module).__name__
    said = f"the neurons of {name} are left alone, as"
    if not pair:
        return f"{said} its experts are slices of one weight, and no rule reads those"
    if known_rule(module) is not None:
        return f"{said} a layer has several of them, and a site is one"
    *inner, out = pair
    words = f'heads="{out}.in_features", mode="hook", inner={tuple(inner)!r}, out="{out}", zero_heads=True'
    words = words.replace("'", '"')
    return f'{said} no rule knows them; to find them, add: SITE_RULES["{name}"] = SiteRule({words})'
