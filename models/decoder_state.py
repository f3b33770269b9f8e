"""What decoding keeps from step to step: keys and values of the source for each sentence, and of the target
so far for each row.

The target's are kept position by position: a step writes one block, and reordering the rows copies the filled
positions alone, all heads of a row at once. Letters: B sentences, N rows (a sentence's beams are rows of
their own), S source, L target positions, H heads, K head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ROOM = 16  # positions by which the target's keys and values grow
KeysValues = tuple[Tensor, Tensor]


@dataclass
class DecoderState:
    """The state of `Transformer.step`, as models/search.py sees it."""

    cross: list[KeysValues]  # per layer k, v (B, H, S, K)
    cross_bias: Tensor  # (B, 1, 1, S): 0, or -inf at padding
    sentences: Tensor  # (B,) number of each remaining sentence in the batch that was started
    row_sentences: Tensor  # (N,) the same for each row
    past: list[KeysValues | None]  # per layer k, v (room, N, H, K): `length` positions, then room for more
    length: int = 0

    def grow(self, layer: int, keys: Tensor, values: Tensor) -> KeysValues:
        """Add one position (N, H, 1, K) to the rows and return all of theirs (N, H, length + 1, K)."""
        new, past = (position_first(keys), position_first(values)), self.past[layer]
        if past is None:
            past = new[0][:0], new[1][:0]
        if len(past[0]) <= self.length:
            past = self.past[layer] = with_room(past[0]), with_room(past[1])
        for buffer, one in zip(past, new, strict=True):
            buffer[self.length] = one[0]
        k, v = (buffer[: self.length + 1].permute(1, 2, 0, 3) for buffer in past)
        return k, v

    def newest(self, layer: int) -> Tensor | None:
        """The last position's keys (N, H, 1, K), for an SSRU its state; None before the first position."""
        past = self.past[layer]
        return past[0][self.length - 1, :, :, None] if past and self.length else None

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Replace row n by row rows[n]; with `sentences`, indices into the remaining sentences, drop all
        others."""
        self.past = [
            past and (selected(past[0], rows, self.length), selected(past[1], rows, self.length))
            for past in self.past
        ]
        self.row_sentences = self.row_sentences[rows]
        if sentences is not None:
            self.cross = [(keys[sentences], values[sentences]) for keys, values in self.cross]
            self.cross_bias = self.cross_bias[sentences]
            self.sentences = self.sentences[sentences]


def position_first(x: Tensor) -> Tensor:
    """Return keys or values (N, H, L, K) as (L, N, H, K)."""
    return x.permute(2, 0, 1, 3)


def with_room(past: Tensor) -> Tensor:
    """Return a copy of past (L, N, H, K) with room for ROOM more positions, so that adding one does not copy
    all others."""
    larger = past.new_empty(len(past) + ROOM, *past.shape[1:])
    larger[: len(past)] = past
    return larger


def selected(past: Tensor, rows: Tensor, length: int) -> Tensor:
    """Return these rows of past (room, N, H, K), whose first `length` positions are filled, with the same
    room."""
    new = past.new_empty(len(past), len(rows), *past.shape[2:])
    torch.index_select(past[:length], 1, rows, out=new[:length])
    return new
