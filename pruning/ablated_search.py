"""Many ablations as one job: what a model translates greedily when heads are closed, found by checking drafts.

The unpruned model's own translation is the draft. One teacher-forced pass under a mask gives the masked model's choice at every position of
the draft. Where all agree, the masked translation is the draft; else it is decoded on from the first that differs. So the result is exactly
that of a greedy search under the mask; a position whose two best logits lie within MARGIN counts as different, because a pass over the whole
draft and one step at a time may round apart there.

A row is one sentence under one mask. Masks whose first closed head is in the same layer go through the model together, and share with the
unpruned model all that comes before that layer: the encoder's output serves the ablations of all decoder heads.
Letters: B sentences, A ablations, R = A * B rows (ablation by ablation), S source, T target, H heads, K head width, D, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from data.batch import pad
from gates import GateBank, HeadMap, HeadSite, attach, detach
from models.search import greedy_search, length_limits
from models.transformer import BOS, EOS, PAD, DecoderLayer, DecoderState, Trace, Transformer, padding_bias
from models.translator import Translator

MARGIN = 1e-4  # nats between the two best tokens, below which a draft's position is decoded again
ROW_TOKENS = 16_000  # target positions of the rows that go through the model at once
LOGITS = 2_000  # positions whose (V,) logits are held at once


@dataclass(frozen=True)
class Ablated:
    """The translations of a model under many masks."""

    drafts: list[str]  # the unpruned model's, one a line
    changed: list[dict[int, str]]  # of every ablation: line number -> translation, where it is not the draft
    decoded: int  # rows that were decoded on

    def hypotheses(self, ablation: int) -> list[str]:
        """All lines of one ablation."""
        return [self.changed[ablation].get(i, draft) for i, draft in enumerate(self.drafts)]

    @property
    def changed_share(self) -> float:
        """The mean over ablations of the share of lines that are not the draft."""
        return sum(map(len, self.changed)) / max(1, len(self.changed) * len(self.drafts))


def ablated_translations(translator: Translator, lines: Sequence[str], ablations: Sequence[HeadMap], *, beam: int = 1) -> Ablated:
    """What the translator's model makes of the lines under each mask (True: closed; sites that a map lacks stay open).

    beam 1: greedy search by drafts, in fp32 and exact. Wider beams are searched one mask after the other. Raises ValueError if the model
    has gates already, or a mask has a site that the model lacks."""
    model = translator.model
    was_training = model.training
    bank = attach(model, gate="mask")
    model.eval()
    try:
        check_sites(bank, ablations)
        if beam > 1:
            return by_beam(translator, bank, lines, ablations, beam)
        return by_drafts(translator, bank, lines, ablations)
    finally:
        detach(model)
        model.train(was_training)


def check_sites(bank: GateBank, ablations: Iterable[HeadMap]) -> None:
    known = set(bank.sites)
    for closed in ablations:
        if strange := [f"{site.name} of {site.heads} heads" for site in closed if site not in known]:
            raise ValueError(f"the model has no {strange[0]}; it has {', '.join(f'{site.name} of {site.heads}' for site in known)}")


def by_beam(translator: Translator, bank: GateBank, lines: Sequence[str], ablations: Sequence[HeadMap], beam: int) -> Ablated:
    drafts = translator.translate(lines, beam=beam)
    changed = []
    for closed in ablations:
        bank.assign({site: xi_of(site, [closed])[0] for site in bank.sites})
        hypotheses = translator.translate(lines, beam=beam)
        changed.append({i: text for i, (text, draft) in enumerate(zip(hypotheses, drafts, strict=True)) if text != draft})
    return Ablated(drafts, changed, len(ablations) * len(lines))


@torch.inference_mode()
def by_drafts(translator: Translator, bank: GateBank, lines: Sequence[str], ablations: Sequence[HeadMap]) -> Ablated:
    ids = translator.encode(lines)
    drafts = [""] * len(lines)
    changed: list[dict[int, str]] = [{} for _ in ablations]
    decoded = 0
    groups = by_entry(ablations)
    options = {"max_ratio": translator.search.max_ratio, "max_extra": translator.search.max_extra}
    for chosen in translator.search_batches([len(sentence) for sentence in ids], 1):
        source = pad([ids[i] for i in chosen], after=EOS).to(translator.device)
        bank.assign({site: torch.ones(site.heads) for site in bank.sites})
        work = Drafts(translator.model, bank, source, **options)
        for i, text in zip(chosen, translator.target_vocab.decode(work.ids), strict=True):
            drafts[i] = text
        found: list[tuple[int, int, list[int]]] = []  # ablation, sentence of the batch, translation
        for entry, members in groups.items():
            size = max(1, ROW_TOKENS // max(1, work.target_in.numel()))
            for begin in range(0, len(members), size):
                part = members[begin : begin + size]
                rows = work.under(entry, [ablations[a] for a in part])
                decoded += len(rows)
                found += [(part[row // len(chosen)], row % len(chosen), new) for row, new in rows.items()]
        for (a, b, new), text in zip(found, translator.target_vocab.decode([new for _, _, new in found]), strict=True):
            if new != work.ids[b]:
                changed[a][chosen[b]] = text
    return Ablated(drafts, changed, decoded)


Entry = tuple[str, int]  # the part of the model, encoder or decoder, and the layer in which a mask first closes a head


def by_entry(ablations: Sequence[HeadMap]) -> dict[Entry, list[int]]:
    """Numbers of the ablations that begin to differ from the unpruned model in the same layer; those that close nothing are left out."""
    groups: dict[Entry, list[int]] = {}
    for number, closed in enumerate(ablations):
        touched = [(site.kind != "enc-self", site.layer) for site, row in closed.items() if row.any()]
        if touched:
            in_decoder, layer = min(touched)
            groups.setdefault(("decoder" if in_decoder else "encoder", layer), []).append(number)
    return groups


def xi_of(site: HeadSite, ablations: Sequence[HeadMap]) -> Tensor:
    """(A, H): 0 at closed heads, 1 elsewhere."""
    return torch.stack([1.0 - closed[site].float() if site in closed else torch.ones(site.heads) for closed in ablations])


class Drafts:
    """One batch of sources: its drafts, and what the unpruned model computes on them."""

    def __init__(self, model: Transformer, bank: GateBank, source: Tensor, *, max_ratio: float, max_extra: int):
        self.model, self.bank = model, bank
        self.limits = length_limits(model, source, max_ratio, max_extra)  # (B,)
        self.ids = [one.ids for one in greedy_search(model, source, max_ratio=max_ratio, max_extra=max_extra)]
        self.target_in = pad(self.ids, before=BOS).to(source.device)  # (B, T)
        self.target_out = pad(self.ids, after=EOS).to(source.device)
        self.bias = padding_bias(source)
        self.encoder, self.decoder = Trace(), Trace()
        self.memory = model.encoder(model.embed(source, "source"), self.bias, trace=self.encoder)
        model.decoder(model.embed(self.target_in, "target"), self.memory, self.bias, trace=self.decoder)

    def under(self, entry: Entry, ablations: Sequence[HeadMap]) -> dict[int, list[int]]:
        """Row -> translation of the rows that had to be decoded on, where every ablation first closes a head in the layer `entry`."""
        part, layer = entry
        times, sentences = len(ablations), len(self.ids)

        def every(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.dim() - 1))  # (B, ...) to (R, ...)

        for site in self.bank.sites:
            xi = xi_of(site, ablations)
            closes = bool((xi == 0).any())
            self.bank.assign({site: xi.repeat_interleave(sentences, dim=0) if closes else torch.ones(site.heads)})
        bias, trace, memory = every(self.bias), Trace(), every(self.memory)
        if part == "encoder":
            memory, layer = self.model.encoder(every(self.encoder.inputs[layer]), bias, first=layer), 0
        hidden = self.model.decoder(every(self.decoder.inputs[layer]), memory, bias, first=layer, trace=trace)
        first = first_difference(self.model, hidden, every(self.target_out), every(self.limits))  # (R,)
        rows = (first >= 0).nonzero().flatten()
        rows = rows[first[rows].argsort(stable=True)]
        if not len(rows):
            return {}
        past = [(keys[rows % sentences], values[rows % sentences]) for keys, values in self.decoder.past[:layer]]
        past += [(keys[rows], values[rows]) for keys, values in trace.past]
        cross = [cast(DecoderLayer, each).cross_attention.keys_values(memory[rows]) for each in self.model.decoder.layers]
        state = Rows(cross, bias[rows], rows, rows, list(past))
        new = decode_on(self.model, state, first[rows], every(self.target_in)[rows], every(self.limits)[rows])
        return dict(zip(rows.tolist(), new, strict=True))


def first_difference(model: Transformer, hidden: Tensor, target: Tensor, limits: Tensor) -> Tensor:
    """(R,): the first position at which the model does not choose `target` (R, T) by MARGIN at least; -1 where it chooses all of it.

    hidden: its states (R, T, D) before the output. At a row's length limit the end of sentence is forced, whatever the model prefers."""
    places = (target != PAD).nonzero()  # (n, 2): rows and positions
    agrees = torch.ones_like(target, dtype=torch.bool)
    for part in places.split(LOGITS):
        row, position = part.unbind(1)
        logits = model.output(hidden[row, position])[:, EOS:]  # padding and beginning are never produced
        wanted = (target[row, position] - EOS)[:, None]
        own = logits.gather(1, wanted).squeeze(1)
        best_other = logits.scatter_(1, wanted, -torch.inf).amax(1)
        agrees[row, position] = (own - best_other >= MARGIN) | (position + 1 >= limits[row])
    differs = ~agrees
    return torch.where(differs.any(1), differs.int().argmax(1), -1)


class Rows(DecoderState):
    """Decoding that rows join at different lengths: the first `open` rows are decoded, the others wait with their drafts.

    Rows are in the order in which they join, keys and values in buffers of the longest length, so that a step neither copies nor
    gathers what is there already."""

    open = 0

    def prepare(self, length: int) -> None:
        """Make room for `length` positions."""
        buffers = []
        for keys, values in self.past:  # type: ignore[misc]  # none is None
            shape = (keys.shape[0], keys.shape[1], length, keys.shape[3])
            pair = keys.new_zeros(shape), values.new_zeros(shape)
            for buffer, known in zip(pair, (keys, values), strict=True):
                buffer[:, :, : known.shape[2]] = known[:, :, :length]
            buffers.append(pair)
        self.past = list(buffers)
        self.waiting = (self.cross, self.cross_bias, self.sentences)

    def grow(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        past = self.past[layer]
        assert past is not None
        for buffer, new in zip(past, (keys, values), strict=True):
            buffer[: self.open, :, self.length] = new[:, :, 0]
        end = self.length + 1
        return past[0][: self.open, :, :end], past[1][: self.open, :, :end]

    def admit(self, count: int) -> None:
        """From now on the first `count` rows are decoded."""
        cross, bias, sentences = self.waiting
        self.open = count
        self.cross = [(keys[:count], values[:count]) for keys, values in cross]
        self.cross_bias = bias[:count]
        self.sentences = self.row_sentences = sentences[:count]

    def keep(self, rows: Tensor) -> None:
        """Only these rows stay, open and waiting."""
        cross, bias, sentences = self.waiting
        self.waiting = ([(keys[rows], values[rows]) for keys, values in cross], bias[rows], sentences[rows])
        self.past = [past and (past[0][rows], past[1][rows]) for past in self.past]


def decode_on(model: Transformer, state: Rows, first: Tensor, target_in: Tensor, limits: Tensor) -> list[list[int]]:
    """The greedy translations of rows whose drafts hold up to position first (R,), ascending. target_in (R, T): beginning and draft."""
    longest = int(limits.max())
    state.prepare(longest)
    count, drafted = target_in.shape
    out = torch.full((count, longest + 1), PAD, device=target_in.device)
    out[:, :drafted] = target_in[:, : longest + 1]
    numbers = torch.arange(count, device=out.device)  # of the rows that are left
    done = torch.zeros(count, dtype=torch.bool, device=out.device)  # of those
    state.length = int(first[0])
    while len(numbers):
        position = state.length
        open_rows = int((first <= position).sum())
        if open_rows == 0:  # all that are open have ended; the next ones wait further on
            state.length = int(first[0])
            continue
        state.admit(open_rows)
        ahead = numbers[:open_rows]
        logits = model.step(out[ahead, position], state)  # the state is one longer now
        token = logits[:, EOS:].argmax(1) + EOS
        token = token.masked_fill(limits[ahead] <= position + 1, EOS)
        out[ahead, position + 1] = token
        done[:open_rows] |= token == EOS
        ended = int(done.sum())
        if ended * 4 > open_rows or ended == len(numbers):
            left = (~done).nonzero().flatten()
            state.keep(left)
            numbers, first, done = numbers[left], first[left], done[left]
    results = []
    for row, begin in zip(out.tolist(), [0] * count, strict=True):
        results.append(row[1 : row.index(EOS, 1)])
    return results
