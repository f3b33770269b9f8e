"""Heads that look at rare words.   Voita et al. 2019 (arXiv:1905.09418), section 5.3: how often is a head's
largest weight on the least
frequent token of a sentence, or on one of the two least frequent, in sentences whose rarest token is not
among the 500 most frequent?

What the paper leaves open: frequencies are those of pieces in the training text. A piece is outside the
`rank` most frequent where at least `rank` pieces are more frequent, so pieces with equal counts are on the
same side. The least frequent token is every position with the lowest count, the two least are every position
whose count is at most the second lowest (a rare piece that occurs twice is both). All queries of all
sentences weigh the same; the end of sentence is neither a query nor a key (`exclude` in attention_pass.py has
the other readings). Sentences of one token are left out: their one key is the rarest whatever the head does.
Unknown pieces count as pieces.

Letters: V vocabulary, B pairs, S source positions, H heads, N counted query positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch, Exclude, check_exclude, means
from headgates.gates import HeadMap, HeadSite

NEVER_RARE = torch.iinfo(torch.int64).max  # the count of what is no word


def token_counts(sentences: Iterable[Any], size: int) -> Tensor:
    """Return how often each of the `size` pieces of the vocabulary occurs, (V,) int64. A sentence is
    a list, tensor or array of ids; an array may hold the ids of many."""
    counts = torch.zeros(size, dtype=torch.int64)
    for ids in sentences:
        counts += torch.as_tensor(ids, dtype=torch.int64).bincount(minlength=size)
    return counts


class RareWords:
    """Counts how often each head of the encoder looks at rare words; other kinds of attention are passed
    over.

    counts (V,): how often each source piece occurs in the training text. Raises ValueError for an unknown
    `exclude` or a rank below 1."""

    def __init__(self, counts: Tensor | Sequence[int], rank: int = 500, *, exclude: Exclude = "both"):
        if rank < 1:
            raise ValueError(
                f"rank is the number of pieces that are not rare: expected at least 1, got {rank}"
            )
        self.rank = rank
        self.exclude: Exclude = check_exclude(exclude)
        self.counts = torch.as_tensor(counts, dtype=torch.int64).cpu()
        self._different = 0  # pieces that occur in the training text
        self.sentences, self.sentences_seen, self.queries = (
            0,
            0,
            0,
        )  # sentences and queries that were counted, and all sentences
        self._hits: dict[HeadSite, Tensor] = {}  # (2, H) on the least, on one of the two least
        self._chance = torch.zeros(2, dtype=torch.float64)

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError for a piece that the counts do not have."""
        sites = [site for site in attention.weights if site.kind == "enc-self"]
        if not sites:
            return
        source = attention.batch.source.cpu()
        if (largest := int(source.max())) >= len(self.counts):
            what = f"counts are of {len(self.counts)} pieces, but a source has piece {largest}"
            raise ValueError(f"{what}; count the training text with the source vocabulary of this model")
        specials = attention.source_specials
        ordered = self.counts[specials.is_piece(torch.arange(len(self.counts)))].sort().values
        more_frequent = len(ordered) - torch.searchsorted(ordered, self.counts, right=True)  # (V,)
        outside, self._different = more_frequent >= self.rank, int((ordered > 0).sum())
        word = specials.is_piece(source)  # (B, S)
        count = self.counts[source].masked_fill(~word, NEVER_RARE)
        least = count.sort(1).values[:, :2]  # (B, 2)
        rarest, two_rarest = (count <= least[:, [i]] for i in (0, least.shape[1] - 1))
        chosen = (word.sum(1) > 1) & (rarest & outside[source]).any(1)  # (B,)
        self.sentences += int(chosen.sum())
        self.sentences_seen += len(source)
        first = attention.strongest(sites[0], self.exclude)
        counted = chosen[first.pair]  # the same queries at every site
        pair, query = first.pair[counted], first.query[counted]  # (N,)
        for site in sites:
            key = attention.strongest(site, self.exclude).key[counted]  # (N, H)
            one, two = (mask[pair[:, None], key].sum(0) for mask in (rarest, two_rarest))
            self._hits[site] = self._hits.get(site, 0) + torch.stack([one, two])
        keys = attention.visible("enc-self", self.exclude).sum(2).cpu()[pair, query].double()  # (N,)
        self.queries += len(pair)
        self._chance = self._chance + torch.stack(
            [(mask.sum(1)[pair] / keys).sum() for mask in (rarest, two_rarest)]
        )

    def rarest(self) -> HeadMap:
        """Return the share of queries whose largest weight is on the least frequent token. Raises ValueError
        where no sentence counts."""
        return self._share(0)

    def two_rarest(self) -> HeadMap:
        """Return the same for one of the two least frequent tokens. Raises ValueError as `rarest`."""
        return self._share(1)

    def chance(self) -> tuple[float, float]:
        """Return the shares (rarest, two rarest) of a head that picks its key at random. Raises ValueError as
        `rarest`."""
        self._check()
        one, two = (self._chance / self.queries).tolist()
        return one, two

    def _share(self, which: int) -> HeadMap:
        self._check()
        return means(
            {site: hits[which] for site, hits in self._hits.items()},
            dict.fromkeys(self._hits, self.queries),
            "rare words",
        )

    def _check(self) -> None:
        if not self._hits:
            raise ValueError(
                "rare words are looked for in encoder self-attention, and none was observed; add the kind "
                "enc-self"
            )
        if not self.sentences:
            raise ValueError(
                f"none of the {self.sentences_seen} sentences has two words and a piece outside the "
                f"{self.rank} most frequent "
                f"({self._different} different ones are in the training text); take a smaller --rare-rank"
            )
