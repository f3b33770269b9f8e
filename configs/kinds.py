"""Kinds of attention and of feed-forward layers, and numbers of heads for each: `--heads
enc-self=4,dec-self=8,cross=12` keeps so many of each open."""

import re
from collections.abc import Sequence

from headgates.configs.did_you_mean import did_you_mean

FLAG = "--heads"
KINDS = ["enc-self", "dec-self", "cross"]
FFN_KINDS = ["enc-ffn", "dec-ffn"]  # of feed-forward layers
ALL_KINDS = [*KINDS, *FFN_KINDS]
KIND_GROUPS = {"heads": KINDS, "ffn": FFN_KINDS, "all": ALL_KINDS}  # words for several kinds
KIND_CHOICES = [*KIND_GROUPS, *KINDS, *FFN_KINDS]
OF_KINDS = (  # of --kinds
    f"Kinds of parts: heads, ffn or all. Or some of {', '.join(ALL_KINDS)}. Default heads; all for a "
    "speed or a size."
)


def kinds_named(words: Sequence[str]) -> list[str]:
    """The kinds that words of `KIND_CHOICES` stand for, in the house's order."""
    named = {kind for word in words for kind in KIND_GROUPS.get(word, [word])}
    return [kind for kind in KIND_GROUPS["all"] if kind in named]


def parse_budget(items: Sequence[str]) -> dict[str, int]:
    """Kind -> heads to keep open, in the house's order of kinds; empty for no item.

    Raises ValueError where an item is not KIND=HEADS, a kind is unknown or comes twice, or a number is not
    whole and at least 0."""
    budget: dict[str, int] = {}
    for item in items:
        kind, equals, heads = (part.strip() for part in item.partition("="))
        if not equals:
            raise ValueError(f"{FLAG}: expected KIND=HEADS such as cross=12, got {item!r}")
        if kind not in KINDS:
            raise ValueError(
                f"{FLAG}: unknown kind of attention {kind!r}{did_you_mean(kind, KINDS)}; expected "
                f"{', '.join(KINDS)}"
            )
        if kind in budget:
            raise ValueError(f"{FLAG}: {kind} is given twice, as {budget[kind]} and {heads}; keep one")
        if not re.fullmatch(r"[0-9]+", heads):
            raise ValueError(f"{FLAG}: {kind}: expected a whole number of heads, at least 0, got {heads!r}")
        budget[kind] = int(heads)
    return {kind: budget[kind] for kind in KINDS if kind in budget}
