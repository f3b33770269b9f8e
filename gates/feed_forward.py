"""Which layers of a model are feed-forward layers, and of which stack.

A layout alone does not make one: a classifier or an adapter of a vision tower may have two linear layers as
well. A feed-forward layer stands in a list of layers of which one has an attention, outside of attentions.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping

from torch import nn

from .site_rule import SiteRule

_ITEM = re.compile(r"(?:^|.*?\.)\d+(?=\.|$)")  # the path of the outermost numbered module


def item_of(path: str) -> str:
    """The path of the layer that a module lies in, "" where it lies in no list."""
    match = _ITEM.match(path)
    return match[0] if match else ""


def list_of(path: str) -> str:
    """The path of the list that a module's layer stands in, "" where it lies in no list."""
    return item_of(path).rpartition(".")[0]


def feed_forward_kinds(
    modules: Mapping[str, nn.Module],
    rules: Mapping[str, SiteRule],
    own: Collection[str],
    attentions: Mapping[str, str],
) -> dict[str, str]:
    """The paths of feed-forward layers, each with its kind: by its path, else as the attentions of its list.

    Of many alike in one layer, which are experts, none is one. rules: of all paths that have one. own: the
    paths of classes with a rule of their own, which are ones anywhere. attentions: the paths of those with a
    rule, with their kinds."""
    stacks: dict[str, str] = {}
    for path, kind in attentions.items():
        stacks.setdefault(list_of(path), "enc-ffn" if kind == "enc-self" else "dec-ffn")
    if len(stacks) > 1:
        stacks.pop("", None)  # such as a pooling head
    paths = [
        path
        for path, rule in rules.items()
        if rule.inner
        and (path in own or list_of(path) in stacks)
        and not in_attention(path, modules, attentions)
    ]
    alike = Counter(map(alike_in_layer, paths))
    return {
        path: f"{named[:3]}-ffn" if (named := stack_in(path)) else stacks.get(list_of(path), "dec-ffn")
        for path in paths
        if alike[alike_in_layer(path)] == 1
    }


def in_attention(path: str, modules: Mapping[str, nn.Module], attentions: Collection[str]) -> bool:
    """Whether a module is an attention or lies in one: one of the `attentions`, or another that is named so
    and has none of them inside, as a layer may be named so too."""
    parts = path.split(".")
    for above in (".".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
        named = "attention" in type(modules[above]).__name__.lower()
        if above in attentions or (named and not any(each.startswith(f"{above}.") for each in attentions)):
            return True
    return False


def alike_in_layer(path: str) -> tuple[str, str]:
    """A layer, and the path in it without numbers."""
    layer = item_of(path)
    return layer, re.sub(r"\d+", "#", path.removeprefix(layer))


def stack_in(path: str) -> str:
    """encoder or decoder, as the path says above its last name; "" where it does not."""
    return next((part for part in reversed(path.split(".")[:-1]) if part in ("encoder", "decoder")), "")
