"""Greedy decoding of rows that begin at different positions: each goes on from where its draft stopped being right.

Rows are in the order of those positions. A row joins when the decoding has come to its own, so all that are decoded have the same length,
and they are always the first so many of the buffers: a step neither copies nor gathers what is there already.
Letters: R rows, S source, T target, H heads, K head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.search import rule_out
from models.transformer import DecoderState, KeysValues, Transformer, with_room

ENDED = 0.25  # share of the open rows that have ended before the buffers are made smaller


@dataclass(frozen=True)
class Started:
    """What decoding needs of rows whose drafts were accepted up to a position."""

    first: Tensor  # (R,) the first position that is decoded
    draft: Tensor  # (R, T) beginning and draft
    limits: Tensor  # (R,) longest translation, the end included
    past: list[KeysValues]  # per decoder layer (R, H, T, K), right before `first`
    cross: list[KeysValues]  # per decoder layer (R, H, S, K)
    cross_bias: Tensor  # (R, 1, 1, S)

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def join(cls, parts: Sequence["Started"]) -> "Started":
        """All rows of parts with one S and T, in the order of the parts."""

        def together(layers: Sequence[list[KeysValues]]) -> list[KeysValues]:
            return [(torch.cat([k for k, _ in pairs]), torch.cat([v for _, v in pairs])) for pairs in zip(*layers, strict=True)]

        first, draft, limits, bias = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("first", "draft", "limits", "cross_bias")
        )
        return cls(first, draft, limits, together([part.past for part in parts]), together([part.cross for part in parts]), bias)

    def take(self, rows: Tensor) -> "Started":
        past, cross = ([(keys[rows], values[rows]) for keys, values in layers] for layers in (self.past, self.cross))
        return Started(self.first[rows], self.draft[rows], self.limits[rows], past, cross, self.cross_bias[rows])


class Rows(DecoderState):
    """The state of rows of which the first `open` are decoded; the others wait."""

    def __init__(self, started: Started, numbers: Tensor):
        self.all_cross, self.all_bias, self.numbers = started.cross, started.cross_bias, numbers
        super().__init__([], started.cross_bias, numbers, numbers, list(started.past), int(started.first[0]))
        self.open = 0

    def admit(self, count: int) -> None:
        """From now on the first `count` rows are decoded."""
        self.open = count
        self.cross = [(keys[:count], values[:count]) for keys, values in self.all_cross]
        self.cross_bias = self.all_bias[:count]
        self.sentences = self.row_sentences = self.numbers[:count]

    def keep(self, rows: Tensor) -> None:
        """Only these rows stay, open and waiting."""
        self.all_cross = [(keys[rows], values[rows]) for keys, values in self.all_cross]
        self.all_bias, self.numbers = self.all_bias[rows], self.numbers[rows]
        self.past = [past and (past[0][rows], past[1][rows]) for past in self.past]

    def grow(self, layer: int, keys: Tensor, values: Tensor) -> KeysValues:
        past = self.past[layer]
        assert past is not None  # the draft's
        if past[0].shape[2] <= self.length:
            past = self.past[layer] = (with_room(past[0]), with_room(past[1]))
        for buffer, new in zip(past, (keys, values), strict=True):
            buffer[: self.open, :, self.length] = new[:, :, 0]
        return past[0][: self.open, :, : self.length + 1], past[1][: self.open, :, : self.length + 1]


def decode_on(model: Transformer, started: Started) -> list[list[int]]:
    """The translation of every row, exactly as greedy search continues its draft from `first` on. Gates are asked for row numbers."""
    specials = model.target_specials
    order = started.first.argsort(stable=True)
    rows = started.take(order)
    limits, first, left = rows.limits, rows.first, torch.arange(len(rows), device=order.device)
    out = torch.full((len(rows), int(limits.max()) + 1), specials.padding, device=order.device)
    width = min(out.shape[1], rows.draft.shape[1])
    out[:, :width] = rows.draft[:, :width]
    done = torch.zeros_like(left, dtype=torch.bool)  # of the rows that are left
    state = Rows(rows, order)
    while len(left):
        open_rows = int((first <= state.length).sum())
        if open_rows == 0:  # those before have ended; the next wait further on
            state.length = int(first[0])
            continue
        state.admit(open_rows)
        ahead = left[:open_rows]
        logits = rule_out(model.step(out[ahead, state.length], state), specials)  # the state is one longer now
        token = logits.argmax(1).masked_fill(limits[ahead] <= state.length, specials.end)
        out[ahead, state.length] = token
        done[:open_rows] |= token == specials.end
        ended = int(done.sum())
        if ended > ENDED * open_rows or ended == len(left):
            rest = (~done).nonzero().flatten()
            state.keep(rest)
            left, first, done = left[rest], first[rest], done[rest]
    results = [row[1 : row.index(specials.end, 1)] for row in out.tolist()]
    return [results[i] for i in order.argsort().tolist()]
