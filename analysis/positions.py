"""Heads that look at one relative position.   Voita et al. 2019 (arXiv:1905.09418), section 5.1: a head is
positional if its largest weight is at one offset at least 90% of the time (in practice -1 or +1).

The offset is key minus query: -1 is the previous token. For cross attention it is the source position minus
the position of the target token that is produced. The paper does not say how the first token counts, which
has no previous one. Here a share is of the queries that have a key at the offset, so a pure previous-token
head has share 1 in sentences of any length; of all queries it would have at most 1 - 1 / (mean length), and
fail the threshold in short sentences. The best offset is the one looked at most often (of equal ones that
with the larger share, then the nearer, then the earlier), not the one with the largest share, which may be an
offset that only one long sentence has.

Letters: H heads, L query, S key, N counted query positions, W window, O = 2 W + 1 offsets.
"""

from collections import Counter, defaultdict
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch
from headgates.gates import HeadMap, HeadSite

THRESHOLD = 0.9


class BestOffset(NamedTuple):
    """Every head's most frequent offset (a whole number) and its share, in [0, 1]."""

    offset: HeadMap
    share: HeadMap


class Positions:
    """Counts the offsets of the largest weights, from -window to +window; those further away count as queries
    alone. Raises ValueError for a window below 1."""

    def __init__(self, window: int = 10):
        if window < 1:
            raise ValueError(
                f"the window is the largest offset that is counted on its own: expected at least 1, got "
                f"{window}"
            )
        self.window = window
        self._looks: defaultdict[HeadSite, Any] = defaultdict(int)  # (H, O) largest weights at each offset
        self._inside: defaultdict[HeadSite, Any] = defaultdict(int)  # (O,) queries with a key at each offset
        self._queries: Counter[HeadSite] = Counter()  # all queries

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch."""
        offsets = torch.arange(-self.window, self.window + 1)
        for site in attention.weights:
            strongest = attention.strongest(site)
            offset = strongest.key - strongest.query[:, None]  # (N, H)
            visible = attention.visible(site.kind).sum(0).cpu()
            self._looks[site] += (offset[..., None] == offsets).sum(0)
            self._inside[site] += torch.stack([visible.diagonal(int(each)).sum() for each in offsets])
            self._queries[site] += len(offset)

    def offsets(self) -> list[dict[str, Any]]:
        """Return a row for every head and every offset that some query has: site, kind, layer, head, offset,
        share, looks (how often), inside (queries with a key there) and queries. Raises ValueError where no
        token was counted."""
        return [
            {
                **site.row(head),
                "offset": column - self.window,
                "share": float(share[head, column]),
                "looks": int(self._looks[site][head, column]),
                "inside": int(self._inside[site][column]),
                "queries": self._queries[site],
            }
            for site, share in self._shares().items()
            for head, column in product(range(site.heads), self._inside[site].nonzero().flatten().tolist())
        ]

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
        # where no query has the offset, no head looks there
        return {
            site: self._looks[site].double() / self._inside[site].clamp_min(1) for site in sorted(self._looks)
        }
