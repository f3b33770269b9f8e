"""One teacher-forced pass over sentence pairs, in which every analysis of attention observes the weights of
every head.

What the papers leave open is decided here for all observers. The end of sentence is "not a real token" (Voita
et al. 2019), so it counts neither as a query nor as a key where an analysis does not say otherwise. Weights
are never renormalised over the remaining keys. Queries and keys stand for these tokens:

    enc-self    both are source tokens; the special token is the end of sentence
    dec-self    both are the decoder's input tokens; the special token is the beginning, whose own row has
                one key of weight 1
    cross       a query stands for the token it produces, so the one that produces the end of sentence is
                special; keys are source tokens

Where several keys have the largest weight, the first one counts. Letters: B pairs, H heads, L query, S key, N
counted query positions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from headgates.analysis.batches import IGNORED, is_encoder_decoder, sites_of, target_positions
from headgates.gates import HeadMap, HeadSite
from headgates.gates.attention_weights import weights_of_runs
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.on_device import on_device
from headgates.gates.sites import device_of

Exclude = Literal["both", "query", "key", "none"]
# the texts of a batch that queries and keys stand for
TEXTS = {
    "enc-self": ("source", "source"),
    "dec-self": ("target_in", "target_in"),
    "cross": ("target_out", "source"),
}

FRAME = -1  # of audio; no id of a text


class Specials(Protocol):
    """The tokens of one vocabulary that are no text."""

    @property
    def padding(self) -> int: ...
    def is_piece(self, ids: Tensor) -> Tensor: ...  # bool: which ids stand for text


class Strongest(NamedTuple):
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
    run: int = 0  # of the layers: those that run several times in a pass come again, with the same pairs
    _strongest: dict[tuple[HeadSite, str], Strongest] = field(default_factory=dict, init=False, repr=False)

    def visible(self, kind: str, exclude: Exclude = "both") -> Tensor:
        """(B, L, S) bool: query and key both count, and the query may see the key."""
        query_text, key_text = TEXTS[kind]
        queries = self._counted(query_text, exclude in ("both", "query"))
        keys = self._counted(key_text, exclude in ("both", "key"))
        pairs = queries[:, :, None] & keys[:, None, :]
        return pairs.tril() if kind == "dec-self" else pairs

    def _counted(self, text: str, pieces_alone: bool) -> Tensor:
        """Where a text of the batch holds a piece, or, unless `pieces_alone`, anything but padding."""
        specials = self.source_specials if text == "source" else self.target_specials
        if pieces_alone:
            return specials.is_piece(getattr(self.batch, text))
        if text == "source":
            real: Tensor = self.batch.source != specials.padding
            return real
        return target_positions(self.batch, specials)  # the beginning may have the padding's id

    def strongest(self, site: HeadSite, exclude: Exclude = "both") -> Strongest:
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
    model: Any,
    batches: Iterable[Any],
    observers: Sequence[Observer],
    *,
    kinds: Iterable[str] | None = None,
    special_ids: Sequence[int] = (),
) -> None:
    """Give the attention of every batch to every observer, without dropout. Gates and masks stay; sites
    without heads are left out, and the model is left as it was.

    model: a Transformer of ours, or what has its special tokens and `encode` and no decoder; the decoder is
    not run where only enc-self heads are looked at. Or any model with a site rule, whose batches are mappings
    of keyword arguments with input_ids: the attention modules have to return their weights, as Hugging
    Face's do when loaded with attn_implementation="eager", and torch's own. Of audio (input_features), the
    source positions are the encoder's frames, none of them padding. special_ids: the ids of such a
    model that are no text, tokenizer.all_special_ids. Pairs are numbered in their order. Of a layer that runs
    several times in a pass (ALBERT) observers are given each run, as if each pair were several.
    Raises ValueError for an unknown kind, for kinds of which the model has no head, where an attention does
    not return its weights, and without any batch."""
    modules = sites_of(model, kinds)
    device, number = device_of(model), 0
    with evaluation_mode(model):
        for batch in batches:
            batch = on_device(batch, device)
            if isinstance(batch, Mapping):
                check_ids(model, batch)
            runs = recorded(model, batch, modules)
            if isinstance(batch, Mapping):
                first = {site: each[0] for site, each in runs.items()}
                pair = numbered_pair(model, with_frames(model, batch, first), number)
                source = target = OtherIds(torch.tensor(special_ids, dtype=torch.int64, device=device))
            else:
                pair, source, target = batch, model.source_specials, model.target_specials
            number += len(pair.source)
            # (B, L) by kind: the padding of the queries
            of_source, of_target = pair.source == source.padding, ~target_positions(pair, target)
            for place in range(max(map(len, runs.values()))):
                shown = {
                    site: each[place]
                    .float()
                    .masked_fill((of_source if site.kind == "enc-self" else of_target)[:, None, :, None], 0.0)
                    for site, each in runs.items()
                    if place < len(each)
                }
                attention = AttentionBatch(pair, shown, source, target, place)
                for observer in observers:
                    observer.add(attention)
    if not number:
        raise ValueError("attention is observed over sentence pairs, got no batch of them")


def recorded(model: Any, batch: Any, modules: Mapping[HeadSite, nn.Module]) -> dict[HeadSite, list[Tensor]]:
    """The attention weights (B, H, L, S) of these sites in one pass, of every run of their layers. Raises
    ValueError where a module does not give them."""
    if not isinstance(batch, Mapping):
        by_name: dict[str, Tensor] = {}
        memory, bias = model.encode(batch.source, by_name)
        if any(site.kind != "enc-self" for site in modules):
            model.decode(memory, bias, batch.target_in, by_name)
        # of a classifier's layer that runs several times (runs, B, H, S, S)
        return {
            site: [*weights] if (weights := by_name[site.name]).dim() == 5 else [weights] for site in modules
        }
    with weights_of_runs(modules) as found:
        model(**batch, **({"output_attentions": True} if hasattr(model, "config") else {}))
    for site, module in modules.items():
        if not found[site]:
            raise ValueError(
                f"{site.name}: {type(module).__name__} gives no attention weights of shape (batch, heads, "
                "queries, keys); load a model of Hugging Face with attn_implementation='eager'"
            )
    return found


@dataclass(frozen=True)
class OtherIds:
    """The special tokens of a model that is not ours. Padding has an id of its own here."""

    special: Tensor
    padding: int = IGNORED

    def is_piece(self, ids: Tensor) -> Tensor:
        return (ids == FRAME) | (ids >= 0) & ~torch.isin(ids, self.special.to(ids.device))


@dataclass(frozen=True)
class NumberedPair:
    """The texts of a batch that is a mapping, (B, S) and (B, T), as `AttentionBatch` reads them."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    index: Tensor  # (B,)


def check_ids(model: Any, batch: Mapping[str, Tensor]) -> None:
    """Raises ValueError where ids or labels are missing whose texts are observed, or the audio in their
    place."""
    source = getattr(model, "main_input_name", "input_ids")
    source = source if source in batch and source == "input_features" else "input_ids"
    for name in (source, "labels") if is_encoder_decoder(model) else (source,):
        if name not in batch:
            raise ValueError(
                f"attention is observed at tokens: expected {name}, the batch has {sorted(batch)}"
            )


def with_frames(
    model: Any, batch: Mapping[str, Tensor], weights: Mapping[HeadSite, Tensor]
) -> Mapping[str, Tensor]:
    """The batch, where it is of audio with ids for its frames: each that the encoder gives is FRAME."""
    if "input_ids" in batch:
        return batch
    name = model.main_input_name
    frames = next((each.shape[-1] for site, each in weights.items() if site.kind != "dec-self"), 1)
    others = {each: tensor for each, tensor in batch.items() if each != "attention_mask"}  # of what came in
    return {**others, "input_ids": batch[name].new_full((len(batch[name]), frames), FRAME, dtype=torch.long)}


def numbered_pair(model: Any, batch: Mapping[str, Tensor], number: int) -> NumberedPair:
    """The texts of the batch, IGNORED at padding; the one text of a model without two stacks stands for
    all. number: of the first pair."""
    ids = batch["input_ids"]
    source = read = produced = ids.where(batch.get("attention_mask", torch.ones_like(ids)).bool(), IGNORED)
    if is_encoder_decoder(model):
        labels = batch["labels"]
        produced = labels if labels.dim() > 1 else source  # the decoder of a classifier reads that again
        start = produced.new_full((len(ids), 1), model.config.decoder_start_token_id)
        read = batch.get("decoder_input_ids", torch.cat([start, produced[:, :-1]], 1))
    return NumberedPair(source, read, produced, torch.arange(number, number + len(ids)))


class HeadMeans:
    """Means over rows that come batch by batch, in float64; `what` names the quantity in its error."""

    def __init__(self, what: str):
        self.what = what
        self.sums: defaultdict[HeadSite, Any] = defaultdict(int)  # (H,)
        self.counts: Counter[HeadSite] = Counter()

    def add(self, site: HeadSite, rows: Tensor) -> None:
        """Take in rows (N, H)."""
        self.sums[site] += rows.cpu().double().sum(0)
        self.counts[site] += len(rows)

    def head_map(self) -> HeadMap:
        """The mean of every head's rows. Raises ValueError where nothing was counted."""
        if not self.sums or not all(self.counts.values()):
            raise ValueError(
                f"{self.what} has nothing to count: no sentence with a word in it was observed for this kind "
                "of attention"
            )
        return HeadMap({site: total / self.counts[site] for site, total in self.sums.items()})
