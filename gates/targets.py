"""How many heads and neurons are asked to stay, and how many can."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from .headmap import FFN_KINDS, HeadSite, is_of
from .names import check_numeric
from .rules import rule_of
from .site_rule import group_of


def targets_of(
    kinds: Iterable[str], heads: int | Mapping[str, int] | None, neurons: int | None
) -> int | dict[str, int] | None:
    """How many stay: in all where there are heads alone, else by kind or word. Raises ValueError where a kind
    has no number, or a number no kind."""
    heads, neurons = whole_number("heads", heads), whole_number("neurons", neurons)
    if neurons is None and not isinstance(heads, Mapping):
        if heads is not None and (ffn := [kind for kind in kinds if kind in FFN_KINDS]):
            raise ValueError(f"heads={heads} says nothing of {' and '.join(ffn)}; give neurons= too")
        return heads
    by_word = dict(heads) if isinstance(heads, Mapping) else {} if heads is None else {"heads": heads}
    targets = by_word if neurons is None else by_word | {"ffn": neurons}
    for word in targets:
        if not any(is_of(kind, word) for kind in kinds):
            raise ValueError(f"{word!r} has a number that stays, but no gates; kinds: {', '.join(kinds)}")
    return targets


def whole_number(name: str, number: Any) -> Any:
    """The number, or one for each kind, as Python's own; None where none is given. Raises ValueError at one
    that is not whole."""
    if isinstance(number, Mapping):
        return {kind: check_numeric(kind, each, whole=True) for kind, each in number.items()}
    return None if number is None else check_numeric(name, number, whole=True)


def check_targets(targets: int | Mapping[str, int], modules: Mapping[HeadSite, nn.Module]) -> None:
    """Raises ValueError at a number that cannot stay of the sites that it is for."""
    for word, number in (targets if isinstance(targets, Mapping) else {"": targets}).items():
        option = {"": "heads", "heads": "heads", "ffn": "neurons"}.get(word, f"heads[{word!r}]")
        own = {site: module for site, module in modules.items() if is_of(site.kind, word)}
        if not own:
            there = ", ".join(dict.fromkeys(site.kind for site in modules))
            raise ValueError(f"{option}: the model has no heads of this kind, but of {there}")
        steps = {site: group_of(module, rule_of(module)) for site, module in own.items()}
        least = sum(least_of(site, module, steps[site]) for site, module in own.items())
        check_number(option, number, least, sum(site.heads for site in own), max(steps.values()))


def least_of(site: HeadSite, module: nn.Module, step: int) -> int:
    """How many of a site's heads or neurons stay at least, `step` of which go together."""
    return 0 if rule_of(module).zero_heads else min(step, site.heads)


def check_number(option: str, number: int, least: int, total: int, step: int = 1) -> None:
    """Raises ValueError unless of `total` heads or neurons, `step` of which share a key head, so many can
    stay. option: the caller's, which gave the number."""
    if not least <= number <= total:
        raise ValueError(f"{option}={number}: expected {least} to {total}, which the model can keep")
    if number < total and (beyond := number % step):
        raise ValueError(
            f"{option}={number}: {step} heads share a key head and go together; ask for {number - beyond} or "
            f"{number - beyond + step}"
        )
