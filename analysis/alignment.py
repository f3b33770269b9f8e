"""How often a cross head looks at the word that is being translated, and how spread its attention is.

A query of a target token agrees with the gold alignment where its largest weight is on an aligned source
token. The end of sentence is no key, and target tokens without an alignment are not counted, nor is the query
that produces the end of sentence. A query is judged by the token that it produces; `token="read"` judges it
by the token that it reads, one step later, which heads of low layers often align instead (Chen et al. 2020,
arXiv:2004.14837). The baseline is the best fixed offset (source minus query position) on the same tokens.
The entropy of the weights needs no gold alignments.   Letters: B pairs, T target (query), S source (key), N
counted queries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch, add_rows, means
from headgates.gates import HeadMap, HeadSite

Links = Sequence[tuple[int, int]]  # (source, target), 0-based


def piece_links(
    links: Iterable[tuple[int, int]], source_words: Sequence[int | None], target_words: Sequence[int | None]
) -> Links:
    """The links between pieces that follow from links between words: every piece has its word's links.
    Sorted, without repetition.

    source_words, target_words: the number of each piece's word, None for a piece of no word."""
    sources, targets = by_word(source_words), by_word(target_words)
    return sorted({(s, t) for i, j in links for s in sources.get(i, ()) for t in targets.get(j, ())})


def by_word(words: Sequence[int | None]) -> dict[int, list[int]]:
    """Return the numbers of every word's pieces, by the word's number."""
    pieces: dict[int, list[int]] = {}
    for piece, word in enumerate(words):
        if word is not None:
            pieces.setdefault(word, []).append(piece)
    return pieces


@dataclass(frozen=True)
class Baseline:
    """The offset at which most target tokens have an aligned source token, and the share of those tokens."""

    offset: int
    share: float


class Alignment:
    """Counts how often each cross head agrees with the gold alignments; other kinds of attention are passed
    over.

    gold: the links between the pieces of each pair, by the pair's number in the split (`Batch.index`). Raises
    ValueError for an unknown `token`."""

    def __init__(
        self, gold: Mapping[int, Links] | Sequence[Links], *, token: Literal["produced", "read"] = "produced"
    ):
        if token not in ("produced", "read"):
            raise ValueError(f"unknown token {token!r}; known: produced, read")
        self.token = token
        numbered = gold if isinstance(gold, Mapping) else dict(enumerate(gold))
        self._links = {
            number: torch.tensor(links, dtype=torch.int64).view(-1, 2) for number, links in numbered.items()
        }
        self._hits: dict[HeadSite, Tensor] = {}  # (H,)
        self._offsets: dict[int, int] = {}  # offset -> aligned tokens that have a link there
        self.tokens = 0  # aligned target tokens

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError for a pair without gold links, and for links beyond its
        sentences."""
        sites = [site for site in attention.weights if site.kind == "cross"]
        if not sites:
            return
        aligned = self._aligned(attention)  # (B, T, S)
        _, query, key = aligned.nonzero(as_tuple=True)
        for offset, times in zip(*(key - query).unique(return_counts=True), strict=True):
            self._offsets[int(offset)] = self._offsets.get(int(offset), 0) + int(times)
        self.tokens += int(aligned.any(2).sum())
        for site in sites:
            # the end of sentence is no key; of the queries those without a link hit nothing
            strongest = attention.strongest(site, "key")
            hits = aligned[strongest.pair[:, None], strongest.query[:, None], strongest.key].sum(0)  # (H,)
            self._hits[site] = self._hits.get(site, 0) + hits

    def _aligned(self, attention: AttentionBatch) -> Tensor:
        """(B, T, S) bool on the CPU, True where the query's token is aligned to the key's."""
        source, target = attention.batch.source.cpu(), attention.batch.target_in.cpu()
        source_lengths = attention.source_specials.is_piece(source).sum(1).tolist()
        target_lengths = attention.target_specials.is_piece(target).sum(1).tolist()
        aligned = torch.zeros(*target.shape, source.shape[1], dtype=torch.bool)
        for row, number in enumerate(attention.batch.index.tolist()):
            if number not in self._links:
                raise ValueError(
                    f"there is no alignment for pair {number} of the split; give one for every pair"
                )
            s, t = self._links[number].T
            for side, piece, length in (
                ("source", s, source_lengths[row]),
                ("target", t, target_lengths[row]),
            ):
                beyond = piece[(piece < 0) | (piece >= length)]
                if len(beyond):
                    raise ValueError(
                        f"the alignment of pair {number} names {side} piece {int(beyond[0])}, but the "
                        f"sentence has {length} pieces; "
                        "pieces count from 0 and are those of this model's vocabulary"
                    )
            aligned[row, t + (self.token == "read"), s] = (
                True  # a query reads, after the beginning, what the one before produced
            )
        return aligned

    def agreement(self) -> HeadMap:
        """The share of aligned target tokens whose largest weight is on an aligned source token. Raises
        ValueError where none was seen."""
        return means(self._hits, dict.fromkeys(self._hits, self.tokens), "alignment")

    def baseline(self) -> Baseline:
        """The best fixed offset; of equally good ones the nearest, then the earlier. Raises ValueError where
        no aligned token was seen."""
        if not self.tokens:
            raise ValueError("alignment has nothing to count: no aligned target token was observed")
        offset = min(self._offsets, key=lambda offset: (-self._offsets[offset], abs(offset), offset))
        return Baseline(offset, self._offsets[offset] / self.tokens)


class Entropy:
    """Mean entropy of the attention weights, for every kind of attention. Special tokens (attention_pass.py)
    are no queries, but stay among the keys: without them the weights would not be a distribution."""

    def __init__(self) -> None:
        self._nats: dict[HeadSite, Tensor] = {}  # (H,) float64, and of how many queries
        self._queries: dict[HeadSite, int] = {}
        self._shares: dict[
            HeadSite, Tensor
        ] = {}  # the same of entropy / log(keys), for queries with at least two keys
        self._free_queries: dict[HeadSite, int] = {}

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch."""
        for site, weights in attention.weights.items():
            keys = attention.visible(site.kind, "query").sum(2)  # (B, L)
            nats = torch.special.entr(weights).sum(3).transpose(1, 2)[keys > 0].cpu().double()  # (N, H)
            log_keys = keys[keys > 0].cpu().double().log()
            free = log_keys > 0  # with one key there is nothing to spread over
            add_rows(self._nats, self._queries, site, nats)
            add_rows(self._shares, self._free_queries, site, nats[free] / log_keys[free][:, None])

    def nats(self) -> HeadMap:
        """Mean entropy in nats, from 0 (one key) to log(keys) (all alike). Raises ValueError where no token
        was seen."""
        return means(self._nats, self._queries, "entropy")

    def relative(self) -> HeadMap:
        """Mean of entropy / log(keys), in [0, 1], over queries with at least two keys. Raises ValueError
        where there is none."""
        return means(self._shares, self._free_queries, "entropy")
