"""Which heads to close by a score: the lowest first, down to a number of open heads.

scores = importance(model, batches)
remove(model, close_to(scores, keep=24, model=model))
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from headgates.gates import FFN_KINDS, KINDS, HeadMap, HeadSite, find_sites
from headgates.gates.blocks import lowest_in_blocks
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import group_of, nearest


def close_to(
    scores: HeadMap,
    keep: int | Mapping[str, int],
    *,
    at_least: int = 0,
    model: nn.Module | None = None,
    multiple: int = 1,
) -> HeadMap:
    """The map (True: closed) that leaves `keep` of the scored heads open, the highest.

    keep: how many in all, or how many of each kind; a kind without a number keeps all. at_least: open heads
    that each site keeps; then more may stay open than `keep`. model: where its heads share key heads, those
    of one close together, by the sum of their scores; neurons share none. multiple: as many stay at each site
    as a multiple of it says, or all; neurons close in blocks of so many, put together by their scores, as
    products of such widths are faster. Of a number between two, the larger stays. Raises ValueError at a
    number that cannot be kept, an unknown kind, one number for neurons and for heads that go together, or
    scores that are not finite."""
    if multiple < 1:
        raise ValueError(f"multiple: expected at least 1, got {multiple}")
    shared = 1 if model is None else shared_by(model)
    parts = [scores]
    if isinstance(keep, Mapping):
        for kind in keep.keys() - {*scores.kinds}:
            raise ValueError(f"keep: the scores have no heads of kind {kind!r}{nearest(kind, scores.kinds)}")
        parts = [scores.select([kind]) for kind in scores.kinds]
    closed: dict[HeadSite, Tensor] = {}
    for part in parts:
        number = keep if isinstance(keep, int) else keep.get(part.kinds[0], part.heads_total)
        closing = part.heads_total - number
        if not 0 <= closing <= part.heads_total:
            raise ValueError(
                f"cannot keep {number} of {part.heads_total} heads; expected 0 to {part.heads_total}"
            )
        with_neurons = not {*FFN_KINDS}.isdisjoint(part.kinds)
        if shared > 1 and with_neurons and not {*KINDS}.isdisjoint(part.kinds):
            raise ValueError(
                f"keep={number}: {shared} heads share a key head and go together, neurons go alone; give a "
                "number for each kind"
            )
        group = 1 if with_neurons else shared
        if multiple == 1:
            sums = HeadMap(
                {
                    replace(site, heads=site.heads // group): row.view(-1, group).sum(1)
                    for site, row in part.items()
                }
            )
            lowest = sums.lowest(closing // group, at_least=-(-at_least // group))
            rows = [row.repeat_interleave(group) for row in lowest.values()]
        else:
            blocks = [multiple] * len(part)
            rows = lowest_in_blocks(list(part.values()), closing, blocks, at_least=at_least)
        closed |= zip(part, rows, strict=True)
    return HeadMap(closed)


def shared_by(model: nn.Module) -> int:
    """How many heads of each site share a key head and can only be removed together. Raises ValueError where
    sites differ."""
    sites = find_sites(model)
    groups = {group_of(module, rule_of(module)) for module in sites.values()}
    if len(groups - {1}) > 1 or any(site.heads % max(groups) for site in sites):
        raise ValueError(
            f"sites of {type(model).__name__} have {sorted(groups)} heads to a key head; close each apart"
        )
    return max(groups)
