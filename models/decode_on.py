"""Greedy decoding of rows that begin at different positions: each continues from where its draft was
rejected.

Rows are sorted by those positions. A row joins when decoding has reached its own position, so all open rows
have the same length, and they are always the first rows of the buffers: a step neither copies nor gathers
earlier keys and values. Letters: R rows, S source, T target, H heads, K head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from headgates.models.decoder_state import DecoderState, DecodingStart, position_first
from headgates.models.search import rule_out
from headgates.models.transformer import Transformer

ENDED = 0.25  # share of the open rows that have ended before the buffers are made smaller


class RowState(DecoderState):
    """The decoder state of sorted rows: the first `open` are being decoded, the others wait."""

    def __init__(self, started: DecodingStart, numbers: Tensor):
        self.all_cross, self.all_bias, self.numbers = started.cross, started.cross_bias, numbers
        past = tree_map(lambda each: position_first(each).contiguous(), started.past)
        super().__init__([], started.cross_bias, numbers, numbers, past, int(started.first[0]))

    def admit(self, count: int) -> None:
        """Decode the first `count` rows from now on."""
        self.cross = tree_map(lambda each: each[:count], self.all_cross)
        self.cross_bias = self.all_bias[:count]
        self.sentences = self.row_sentences = self.numbers[:count]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, open and waiting."""
        self.all_cross, self.all_bias, self.numbers = tree_map(
            lambda each: each[rows], (self.all_cross, self.all_bias, self.numbers)
        )
        self.past = tree_map(lambda each: each[:, rows], self.past)


def decode_on(model: Transformer, starts: Sequence[DecodingStart], min_length: int = 0) -> list[list[int]]:
    """The translation of every row, exactly as greedy search continues its draft from position `first`. Gates
    are indexed by row. starts: with the same S and T; their rows follow each other."""
    specials = model.target_specials
    joined = tree_map(lambda *each: torch.cat(each), *starts)
    order = joined.first.argsort(stable=True)
    rows = tree_map(lambda each: each[order], joined)
    limits, first, left = rows.limits, rows.first, torch.arange(len(order), device=order.device)
    out = torch.full((len(order), int(limits.max()) + 1), specials.padding, device=order.device)
    width = min(out.shape[1], rows.draft.shape[1])
    out[:, :width] = rows.draft[:, :width]
    done = torch.zeros_like(left, dtype=torch.bool)  # for the rows that are left
    state = RowState(rows, order)
    while len(left):
        open_rows = int((first <= state.length).sum())
        if open_rows == 0:  # all earlier rows have ended; jump to the next waiting row
            state.length = int(first[0])
            continue
        state.admit(open_rows)
        ahead = left[:open_rows]
        logits = model.step(out[ahead, state.length], state)  # the state is one longer now
        early = limits[ahead] > state.length if state.length <= min_length else None
        token = (
            rule_out(logits, specials, early)
            .argmax(1)
            .masked_fill(limits[ahead] <= state.length, specials.end)
        )
        out[ahead, state.length] = token
        done[:open_rows] |= token == specials.end
        ended = int(done.sum())
        if ended > ENDED * open_rows or ended == len(left):
            rest = (~done).nonzero().flatten()
            state.keep(rest)
            left, first, done = left[rest], first[rest], done[rest]
    results = [row[1 : row.index(specials.end, 1)] for row in out.tolist()]
    return [results[i] for i in order.argsort().tolist()]
