"""Which layers of a model are feed-forward layers, and of which stack.

A layout alone does not make one: a classifier or an adapter of a vision tower may have two linear layers as
well. A feed-forward layer stands in a list of layers of which one has an attention, outside of attentions.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from torch import nn

from .site_rule import SiteRule

_NUMBER = re.compile(r"(?:^|\.)\d+(?=\.|$)")


def items_of(path: str) -> list[str]:
    """The paths of the numbered modules that a module lies in, from the outermost."""
    return [path[: match.end()] for match in _NUMBER.finditer(path)]


class LayerPaths:
    """Which numbered modules are layers: the innermost with both an attention and a feed-forward layer, as
    those of a stage have them (Swin); elsewhere the outermost."""

    def __init__(self, attentions: Iterable[str], feed_forwards: Iterable[str]):
        held = [{item for path in paths for item in items_of(path)} for paths in (attentions, feed_forwards)]
        self.whole = set.intersection(*held)

    def item_of(self, path: str) -> str:
        """The path of the layer that a module lies in, "" where it lies in no list."""
        items = items_of(path)
        return next((item for item in reversed(items) if item in self.whole), items[0] if items else "")

    def list_of(self, path: str) -> str:
        """The path of the list that a module's layer stands in, "" where it lies in no list."""
        return self.item_of(path).rpartition(".")[0]

    def alike(self, path: str) -> tuple[str, str]:
        """A layer, and the path in it without numbers."""
        layer = self.item_of(path)
        return layer, re.sub(r"\d+", "#", path.removeprefix(layer))


def feed_forward_kinds(
    modules: Mapping[str, nn.Module],
    rules: Mapping[str, SiteRule],
    own: Collection[str],
    attentions: Mapping[str, str],
) -> dict[str, str]:
    """The paths of feed-forward layers, each with its kind: as the attentions of its list, else by its path.

    Of many alike in one layer, which are experts, none is one. rules: of all paths that have one. own: the
    paths of classes with a rule of their own, which are ones anywhere. attentions: the paths of those with a
    rule, with their kinds."""
    layers = LayerPaths(attentions, (path for path, rule in rules.items() if rule.inner))
    stacks: dict[str, str] = {}
    for path, kind in attentions.items():
        stacks.setdefault(layers.list_of(path), "enc-ffn" if kind == "enc-self" else "dec-ffn")
    if len(stacks) > 1:
        stacks.pop("", None)  # such as a pooling head
    paths = [
        path
        for path, rule in rules.items()
        if rule.inner
        and (path in own or layers.list_of(path) in stacks)
        and not in_attention(path, modules, attentions)
    ]
    alike = Counter(map(layers.alike, paths))
    return {
        path: stacks.get(layers.list_of(path)) or f"{stack_in(path)[:3] or 'dec'}-ffn"
        for path in paths
        if alike[layers.alike(path)] == 1
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


def stack_in(path: str) -> str:
    """encoder or decoder, as the path says above its last name; "" where it does not."""
    return next((part for part in reversed(path.split(".")[:-1]) if part in ("encoder", "decoder")), "")
