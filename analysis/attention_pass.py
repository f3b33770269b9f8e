"""One teacher-forced pass over sentence pairs, in which every analysis of attention observes the weights of
every head.

What the papers leave open is decided here for all observers. The end of sentence is "not a real token" (Voita
et al. 2019), so by default it counts neither as a query nor as a key; `exclude` gives the other readings
("query", "key", "none"). Weights are never renormalised over the remaining keys. Queries and keys stand for
these tokens:

    enc-self    both are source tokens; the special token is the end of sentence
    dec-self    both are the decoder's input tokens; the special token is the beginning, whose own row has one
    key of weight 1
    cross       a query stands for the token it produces, so the one that produces the end of sentence is
    special; keys are source tokens

Where several keys have the largest weight, the first one counts. Letters: B pairs, H heads, L query, S key, N
counted query positions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.headmap import check_kinds
from headgates.gates.hold import nearest

Exclude = Literal["both", "query", "key", "none"]


class Specials(Protocol):
    """The tokens of one vocabulary that are no text."""

    @property
    def padding(self) -> int: ...
    def is_piece(self, ids: Tensor) -> Tensor: ...  # bool: which ids stand for text


@dataclass(frozen=True)
class Strongest:
    """The largest weights of the heads of a site, a row for each counted query, on the CPU."""

    weight: Tensor  # (N, H) fp32
    key: Tensor  # (N, H) position of that weight
    pair: Tensor  # (N,) row of the batch
    query: Tensor  # (N,) position of the query


@dataclass(frozen=True, eq=False)
class AttentionBatch:
    """The attention weights of one batch. They are 0 where the key or the query is padding."""

    batch: Any  # a pair of texts, as batches.py says
    weights: dict[HeadSite, Tensor]  # (B, H, L, S) fp32
    source_specials: Specials
    target_specials: Specials
    _strongest: dict[tuple[HeadSite, str], Strongest] = field(default_factory=dict, init=False, repr=False)

    def tokens(self, kind: str) -> tuple[Tensor, Tensor]:
        """The ids of the tokens that queries (B, L) and keys (B, S) of this kind stand for."""
        batch = self.batch
        if kind == "enc-self":
            return batch.source, batch.source
        return (batch.target_in, batch.target_in) if kind == "dec-self" else (batch.target_out, batch.source)

    def visible(self, kind: str, exclude: Exclude) -> Tensor:
        """(B, L, S) bool: query and key both count, and the query may see the key."""
        queries, keys = self.tokens(kind)
        queries = self._counts(queries, pieces_alone=exclude in ("both", "query"))
        keys = self._counts(keys, pieces_alone=exclude in ("both", "key"))
        pairs = queries[:, :, None] & keys[:, None, :]
        return pairs.tril() if kind == "dec-self" else pairs

    def _counts(self, ids: Tensor, *, pieces_alone: bool) -> Tensor:
        """Where one of the batch's tensors holds a piece, or, unless `pieces_alone`, anything but padding."""
        on_source = ids is self.batch.source
        specials = self.source_specials if on_source else self.target_specials
        if pieces_alone:
            return specials.is_piece(ids)
        # the decoder's input is padding where its output is: the beginning may have the padding's id
        return (ids if on_source else self.batch.target_out) != specials.padding

    def strongest(self, site: HeadSite, exclude: Exclude) -> Strongest:
        """The largest weight, and its key, of every counted query that sees a counted key. Kept, since
        several analyses need it."""
        if (site, exclude) not in self._strongest:
            visible = self.visible(site.kind, exclude)
            counted = visible.any(2)  # (B, L)
            weight, key = self.weights[site].masked_fill(~visible[:, None], -1.0).max(3)  # (B, H, L)
            flat = [tensor.transpose(1, 2)[counted].cpu() for tensor in (weight, key)]  # (N, H)
            pair, query = counted.nonzero(as_tuple=True)
            self._strongest[site, exclude] = Strongest(flat[0], flat[1], pair.cpu(), query.cpu())
        return self._strongest[site, exclude]


class Observer(Protocol):
    """An analysis that collects what it needs from every batch; its other methods give the results
    afterwards."""

    def add(self, attention: AttentionBatch) -> None: ...


@torch.inference_mode()
def observe_attention(
    model: Any, batches: Iterable[Any], observers: Sequence[Observer], *, kinds: Iterable[str] | None = None
) -> None:
    """Give the attention of every batch to every observer, without dropout. Gates and masks stay; sites
    without heads are left out.

    model: a Transformer, or what has its special tokens and `encode` and no decoder. The decoder is not run
    where only enc-self heads are looked at. The model is left as it was. Raises ValueError for an unknown
    kind, for kinds of which the model has no head, and without any batch."""
    chosen = check_kinds(kinds)
    sites = [site for site in find_sites(model) if site.kind in chosen and site.heads]
    if not sites:
        raise ValueError(
            f"the model has no heads of the kinds {', '.join(chosen)}, so there is no attention to look at; "
            "name other kinds"
        )
    device, source, target = next(model.parameters()).device, model.source_specials, model.target_specials
    empty = True
    with evaluation_mode(model):
        for batch in batches:
            empty = False
            batch = batch.to(device)
            weights: dict[str, Tensor] = {}
            memory, bias = model.encode(batch.source, weights)
            if any(site.kind != "enc-self" for site in sites):
                model.decode(memory, bias, batch.target_in, weights)
            source_padding, target_padding = (
                batch.source == source.padding,
                batch.target_out == target.padding,
            )  # (B, S), (B, T)
            padding = {
                kind: source_padding if kind == "enc-self" else target_padding for kind in chosen
            }  # (B, L)
            shown = {
                s: weights[s.name].float().masked_fill(padding[s.kind][:, None, :, None], 0.0) for s in sites
            }
            attention = AttentionBatch(batch, shown, source, target)
            for observer in observers:
                observer.add(attention)
    if empty:
        raise ValueError("attention is observed over sentence pairs, got no batch of them")


def check_exclude(exclude: str) -> Exclude:
    """The reading, as its type. Raises ValueError if it is unknown."""
    choices = get_args(Exclude)
    for choice in choices:
        if exclude == choice:
            return choice
    raise ValueError(f"unknown exclude {exclude!r}{nearest(exclude, list(choices))}")


def add_rows(sums: dict[HeadSite, Tensor], counts: dict[HeadSite, int], site: HeadSite, rows: Tensor) -> None:
    """Add rows (N, H) to the sum (H,) of a site, and their number to its count."""
    sums[site] = sums.get(site, 0) + rows.sum(0)
    counts[site] = counts.get(site, 0) + len(rows)


def means(sums: Mapping[HeadSite, Tensor], counts: Mapping[HeadSite, int], what: str) -> HeadMap:
    """sums / counts, in float64. Raises ValueError where nothing was counted; `what` names the quantity in
    its message."""
    if not sums or not all(counts[site] for site in sums):
        raise ValueError(
            f"{what} has nothing to count: no sentence with a word in it was observed for this kind of "
            "attention"
        )
    return HeadMap({site: total.double() / counts[site] for site, total in sums.items()})
