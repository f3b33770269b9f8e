"""How often a cross head looks at the word that is being translated, and how spread its attention is.

A query of a target token agrees with the gold alignment where its largest weight is on an aligned source
token. The end of sentence is no key, and target tokens without an alignment are not counted, nor is the query
that produces the end of sentence. A query is judged by the token that it produces. The baseline is the best
fixed offset (source minus query position) on the same tokens. The entropy of the weights needs no gold
alignments.   Letters: B pairs, T target (query), S source (key), N counted queries."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch, HeadMeans
from headgates.gates import HeadMap

Links = Sequence[tuple[int, int]]  # (source, target), 0-based


def piece_links(
    links: Iterable[tuple[int, int]], source_words: Sequence[int | None], target_words: Sequence[int | None]
) -> Links:
    """The links between pieces that follow from links between words: every piece has its word's links.
    Sorted, without repetition.

    source_words, target_words: the number of each piece's word, None for a piece of no word."""
    words = set(links)
    return [
        (s, t)
        for s, source in enumerate(source_words)
        for t, target in enumerate(target_words)
        if (source, target) in words
    ]


class Baseline(NamedTuple):
    """The offset at which most target tokens have an aligned source token, and the share of those tokens."""

    offset: int
    share: float


def alignment_heads(agreement: HeadMap, baseline: Baseline) -> list[tuple[int, int]]:
    """(layer, head) of the cross heads that agree with the gold alignments more often than the best fixed
    offset, the best head first, and the best alone where none does; as Whisper's generation_config and
    CTranslate2's config.json list them.

    Raises ValueError where there are no cross heads."""
    found = [
        (-float(share), site.layer, head)
        for site, row in agreement.select(["cross"]).items()
        for head, share in enumerate(row)
    ]
    if not found:
        raise ValueError("agreement has no cross heads, and others do not align")
    ranked = sorted(found)
    above = [each for each in ranked if -each[0] > baseline.share]
    return [(layer, head) for _, layer, head in above or ranked[:1]]


class Alignment:
    """Counts how often each cross head agrees with the gold alignments; other kinds of attention are passed
    over.

    gold: the links between the pieces of each pair, by the pair's number in the split (`Batch.index`), or in
    the order of the split."""

    def __init__(self, gold: Mapping[int, Links] | Sequence[Links]):
        self._gold = dict(gold if isinstance(gold, Mapping) else enumerate(gold))
        self._hits = HeadMeans("alignment")
        self._offsets: Counter[int] = Counter()  # offset -> aligned tokens that have a link there
        self.tokens = 0  # aligned target tokens

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch. Raises ValueError for a pair without gold links, and for links beyond its
        sentences."""
        sites = [site for site in attention.weights if site.kind == "cross"]
        if not sites:
            return
        aligned = self._aligned(attention)  # (B, T, S)
        _, query, key = aligned.nonzero(as_tuple=True)
        self._offsets.update((key - query).tolist())
        self.tokens += int(aligned.any(2).sum())
        for site in sites:
            # the end of sentence is no key
            _, key, pair, query = attention.strongest(site, "key")
            judged = aligned[pair, query].any(1)
            self._hits.add(site, aligned[pair[:, None], query[:, None], key][judged])

    def _aligned(self, attention: AttentionBatch) -> Tensor:
        """(B, T, S) bool on the CPU, True where the query's token is aligned to the key's."""
        source, target = (
            specials.is_piece(ids.cpu())
            for specials, ids in (
                (attention.source_specials, attention.batch.source),
                (attention.target_specials, attention.batch.target_out),
            )
        )
        pieces = target[:, :, None] & source[:, None]
        aligned = torch.zeros_like(pieces)
        for row, number in enumerate(attention.batch.index.tolist()):
            if number not in self._gold:
                raise ValueError(
                    f"there is no alignment for pair {number} of the split; give one for every pair"
                )
            for s, t in self._gold[number]:
                if not pieces[row, t : t + 1, s : s + 1].any():
                    raise ValueError(
                        f"the alignment of pair {number} links piece {s} to {t}, which its sentences do not "
                        "have; pieces count from 0 and are those of this model's vocabulary"
                    )
                aligned[row, t, s] = True
        return aligned

    def agreement(self) -> HeadMap:
        """The share of aligned target tokens whose largest weight is on an aligned source token. Raises
        ValueError where none was seen."""
        return self._hits.head_map()

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
        self._nats, self._shares = HeadMeans("entropy"), HeadMeans("entropy")

    def add(self, attention: AttentionBatch) -> None:
        """Count one batch."""
        for site, weights in attention.weights.items():
            keys = attention.visible(site.kind, "query").sum(2)  # (B, L)
            nats = torch.special.entr(weights).sum(3).transpose(1, 2)[keys > 0].double()  # (N, H)
            most = keys[keys > 0, None].double().log()
            free = most.flatten() > 0  # with one key there is nothing to spread over
            self._nats.add(site, nats)
            self._shares.add(site, (nats / most)[free])

    def nats(self) -> HeadMap:
        """Mean entropy in nats, from 0 (one key) to log(keys) (all alike). Raises ValueError where no token
        was seen."""
        return self._nats.head_map()

    def relative(self) -> HeadMap:
        """Mean of entropy / log(keys), in [0, 1], over queries with at least two keys. Raises ValueError
        where there is none."""
        return self._shares.head_map()
