"""Heads that look at one relative position.   Voita et al. 2019 (arXiv:1905.09418), section 5.1: a head is
positional if its largest weight
is at one offset at least 90% of the time (in practice -1 or +1).

The offset is key minus query: -1 is the previous token. For cross attention it is the source position minus
the position of the target token that is produced. The paper does not say how the first token counts, which
has no previous one. `edges` decides: "inside" (the default) divides by the queries that have a key at the
offset, so a pure previous-token head has share 1 in sentences of any length; "all" divides by all queries, so
such a head has at most 1 - 1 / (mean length) and fails the threshold in short sentences. The best offset is
the one looked at most often (of equal ones that with the larger share, then the nearer, then the earlier),
not the one with the largest share, which may be an offset that only one long sentence has.

Letters: H heads, L query, S key, N counted query positions, W window, O = 2 W + 1 offsets.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch, Exclude, check_exclude
from headgates.gates import HeadMap, HeadSite

Edges = Literal["inside", "all"]
THRESHOLD = 0.9


@dataclass(frozen=True)
class BestOffset:
    """Every head's most frequent offset (a whole number) and its share, in [0, 1]."""

    offset: HeadMap
    share: HeadMap


class Positions:
    """Counts the offsets of the largest weights, from -window to +window; those further away count as queries
    alone.

    Raises ValueError for an unknown `exclude` or `edges`, or a window below 1."""

    def __init__(self, window: int = 10, *, exclude: Exclude = "both", edges: Edges = "inside"):
        if window < 1:
            raise ValueError(
                "the window is the largest offset that is counted on its own: expected at least 1, got "
                f"{window}"
            )
        if edges not in ("inside", "all"):
            raise ValueError(f"unknown edges {edges!r}; known: inside, all")
        self.window, self.edges = window, edges
        self.exclude: Exclude = check_exclude(exclude)
        self._looks: dict[HeadSite, Tensor] = {}  # (H, O) largest weights at each offset
        self._inside: dict[str, Tensor] = {}  # kind -> (O,) queries with a key at each offset
        self._queries: dict[str, int] = {}  # kind -> all queries

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch."""
        width = 2 * self.window + 1
        for site in attention.weights:
            strongest = attention.strongest(site, self.exclude)
            column = strongest.key - strongest.query[:, None] + self.window  # (N, H)
            cell = column + width * torch.arange(site.heads)
            looks = cell[(column >= 0) & (column < width)].bincount(minlength=site.heads * width)
            self._looks[site] = self._looks.get(site, 0) + looks.view(site.heads, width)
        for kind in sorted({site.kind for site in attention.weights}):
            visible = attention.visible(kind, self.exclude)
            queries, keys = torch.arange(visible.shape[1]), torch.arange(visible.shape[2])
            column = keys - queries[:, None] + self.window  # (L, S)
            near = (column >= 0) & (column < width)
            inside = column[near].bincount(visible.sum(0).cpu()[near], minlength=width).long()
            self._inside[kind] = self._inside.get(kind, 0) + inside
            self._queries[kind] = self._queries.get(kind, 0) + int(visible.any(2).sum())

    def offsets(self) -> list[dict[str, Any]]:
        """Return a row for every head and every offset that some query has: site, kind, layer, head, offset,
        share (of the queries that `edges` names), looks (how often), inside (queries with a key there) and
        queries. Raises ValueError
        where no token was counted."""
        rows = []
        for site, share in self._shares().items():
            inside = self._inside[site.kind]
            columns = inside.nonzero().flatten().tolist()
            for head, column in product(range(site.heads), columns):
                place = {
                    "site": site.name,
                    "kind": site.kind,
                    "layer": site.layer,
                    "head": head,
                    "offset": column - self.window,
                }
                counts = {"looks": int(self._looks[site][head, column]), "inside": int(inside[column])}
                rows.append(
                    {
                        **place,
                        "share": float(share[head, column]),
                        **counts,
                        "queries": self._queries[site.kind],
                    }
                )
        return rows

    def best(self) -> BestOffset:
        """Return every head's best offset within the window and its share. Raises ValueError where no token
        was counted."""
        nearest_first = torch.tensor(
            sorted(range(-self.window, self.window + 1), key=lambda offset: (abs(offset), offset))
        )
        offsets, shares = {}, {}
        for site, share in self._shares().items():
            # looks are whole numbers and shares at most 1: a share breaks ties and no more; argmax takes the
            # first, the nearest
            order = (self._looks[site] + share / 2)[:, nearest_first + self.window]
            offsets[site] = nearest_first[order.argmax(1)]
            shares[site] = share.gather(1, (offsets[site] + self.window)[:, None]).squeeze(1)
        return BestOffset(HeadMap(offsets), HeadMap(shares))

    def _shares(self) -> dict[HeadSite, Tensor]:
        """Return the shares (H, O) of every site, in the order of sites."""
        if not self._looks or not all(self._queries.values()):
            raise ValueError(
                "positions have nothing to count: no sentence with a word in it was observed for this kind "
                "of attention"
            )
        shares = {}
        for site in sorted(self._looks):
            queries = (
                self._inside[site.kind] if self.edges == "inside" else torch.tensor(self._queries[site.kind])
            )
            shares[site] = self._looks[site].double() / queries.clamp_min(
                1
            )  # where no query has the offset, no head looks there
        return shares
