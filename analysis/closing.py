"""Which heads to close by a score: the lowest first, down to a number of open heads.

scores = importance(model, batches)
remove(model, close_to(scores, keep=24))
"""

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.gates.blocks import lowest_in_blocks
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import group_of, nearest


def close_to(
    scores: HeadMap,
    keep: int | Mapping[str, int],
    *,
    at_least: int = 0,
    protect: Iterable[str] = (),
    model: nn.Module | None = None,
    multiple: int = 1,
) -> HeadMap:
    """The map (True: closed) that leaves `keep` of the scored heads open, the highest.

    keep: how many in all, or how many of each kind; a kind without a number keeps all. at_least: open heads
    that each site keeps; then more may stay open than `keep`. protect: names of sites that keep all heads,
    such as "encoder.0.enc-self"; they count among those that are kept. model: where heads share key heads,
    those of one close together, by the sum of their scores; of a number between two groups the larger stays.
    multiple: as many stay at each site as a multiple of it says, or all; neurons close in blocks of so many,
    put together by their scores, as products of such widths are faster. Of a number between two, the larger
    stays here too. Raises ValueError at a number that cannot be kept, an unknown kind or site, or scores that
    are not finite."""
    names = [site.name for site in scores]
    for name in (protected := set(protect)) - set(names):
        raise ValueError(f"protect: the scores have no site {name!r}{nearest(name, names)}")
    parts = [scores]
    if isinstance(keep, Mapping):
        kinds = dict.fromkeys(site.kind for site in scores)
        for kind in keep.keys() - kinds.keys():
            raise ValueError(f"keep: the scores have no heads of kind {kind!r}{nearest(kind, list(kinds))}")
        parts = [scores.select([kind]) for kind in kinds]
    group = 1 if model is None else shared_by(model)
    closed = {site: torch.zeros(site.heads, dtype=torch.bool) for site in scores}
    for part in parts:
        number = keep if isinstance(keep, int) else keep.get(next(iter(part)).kind, part.heads_total)
        free = HeadMap({site: row for site, row in part.items() if site.name not in protected})
        fixed = part.heads_total - free.heads_total
        if not fixed <= number <= part.heads_total:
            raise ValueError(
                f"cannot keep {number} of {part.heads_total} heads; expected {fixed} to {part.heads_total}"
            )
        if multiple > 1:
            shut = lowest_in_blocks(
                list(free.values()),
                part.heads_total - number,
                [multiple] * len(free),
                at_least=at_least,
            )
            closed |= dict(zip(free, shut, strict=True))
            continue
        grouped = {HeadSite.at(s.kind, s.layer, s.heads // group): row for s, row in free.items()}
        sums = HeadMap({site: row.view(-1, group).sum(1) for site, row in grouped.items()})
        chosen = sums.lowest((part.heads_total - number) // group, at_least=-(-at_least // group))
        for site, row in zip(free, chosen.values(), strict=True):
            closed[site] = row.repeat_interleave(group)
    return HeadMap(closed)


def shared_by(model: nn.Module) -> int:
    """How many heads can only be removed together, the same at every site but those whose heads are not
    bound. Raises ValueError where sites differ."""
    sites = find_sites(model)
    groups = {group_of(module, rule_of(module)) for module in sites.values()}
    if len(groups - {1}) > 1 or any(site.heads % max(groups) for site in sites):
        raise ValueError(
            f"sites of {type(model).__name__} have {sorted(groups)} heads to a key head; close each site "
            "apart"
        )
    return max(groups)
