"""Heads that look at rare words.   Voita et al. 2019 (arXiv:1905.09418), section 5.3: how often is a head's
largest weight on the least frequent token of a sentence, or on one of the two least frequent, in sentences
whose rarest token is not among the 500 most frequent?

What the paper leaves open: frequencies are those of pieces in the training text. A piece is outside the
`rank` most frequent where at least `rank` pieces are more frequent, so pieces with equal counts are on the
same side. The least frequent token is every position with the lowest count, the two least are every position
whose count is at most the second lowest (a rare piece that occurs twice is both). All queries of all
sentences weigh the same; the end of sentence is neither a query nor a key. Sentences of one token are left
out: their one key is the rarest whatever the head does. Unknown pieces count as pieces.

Letters: V vocabulary, B pairs, S source positions, H heads, N counted query positions.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch, HeadMeans
from headgates.gates import HeadMap

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

    counts (V,): how often each source piece occurs in the training text. Raises ValueError for a rank
    below 1."""

    def __init__(self, counts: Tensor | Sequence[int], rank: int = 500):
        if rank < 1:
            raise ValueError(
                f"rank is the number of pieces that are not rare: expected at least 1, got {rank}"
            )
        self.rank = rank
        self.counts = torch.as_tensor(counts, dtype=torch.int64).cpu()
        self._different = 0  # pieces that occur in the training text
        self.sentences = self.sentences_seen = self.queries = 0  # the second: also those that do not count
        self._hits = HeadMeans("rare words"), HeadMeans("rare words")  # on the least, on one of the two least
        self._chance = torch.zeros(2, dtype=torch.float64)

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError for a piece that the counts do not have."""
        sites = [site for site in attention.weights if site.kind == "enc-self"]
        if not sites:
            return
        source, specials = attention.batch.source.cpu(), attention.source_specials
        if (largest := int(source.max())) >= len(self.counts):
            raise ValueError(
                f"counts are of {len(self.counts)} pieces, but a source has piece {largest}; count the "
                "training text with the source vocabulary of this model"
            )
        ordered = self.counts[specials.is_piece(torch.arange(len(self.counts)))].sort().values
        self._different = int((ordered > 0).sum())
        word = specials.is_piece(source)  # (B, S)
        count = self.counts[source.where(word, 0)].masked_fill(~word, NEVER_RARE)
        least = count.sort(1).values[:, :2]  # (B, 2)
        rarest, _ = masks = [count <= least[:, [i]] for i in (0, -1)]
        more_frequent = len(ordered) - torch.searchsorted(ordered, count, right=True)  # (B, S)
        chosen = (word.sum(1) > 1) & (rarest & (more_frequent >= self.rank)).any(1)  # (B,)
        if attention.run == 0:
            self.sentences += int(chosen.sum())
            self.sentences_seen += len(source)
        for site in sites:
            _, key, pair, query = attention.strongest(site)
            counted = chosen[pair]  # the same queries at every site
            key, pair, query = key[counted], pair[counted], query[counted]  # (N, H), (N,)
            for hits, mask in zip(self._hits, masks, strict=True):
                hits.add(site, mask[pair[:, None], key])
        if attention.run:
            return
        keys = attention.visible("enc-self").sum(2).cpu()[pair, query]  # (N,)
        self.queries += len(pair)
        self._chance += torch.stack([(mask.sum(1)[pair] / keys.double()).sum() for mask in masks])

    def rarest(self, which: int = 0) -> HeadMap:
        """Return the share of queries whose largest weight is on the least frequent token. Raises ValueError
        where no sentence counts."""
        self._check()
        return self._hits[which].head_map()

    def two_rarest(self) -> HeadMap:
        """Return the same for one of the two least frequent tokens. Raises ValueError as `rarest`."""
        return self.rarest(1)

    def chance(self) -> tuple[float, float]:
        """Return the shares (rarest, two rarest) of a head that picks its key at random. Raises ValueError as
        `rarest`."""
        self._check()
        one, two = (self._chance / self.queries).tolist()
        return one, two

    def _check(self) -> None:
        if not self.sentences_seen:
            raise ValueError(
                "rare words are looked for in encoder self-attention, and none was observed; add the kind "
                "enc-self"
            )
        if not self.sentences:
            raise ValueError(
                f"none of the {self.sentences_seen} sentences has two words and a piece outside the "
                f"{self.rank} most frequent "
                f"({self._different} different ones are in the training text); take a smaller rare_rank"
            )
