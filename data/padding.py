"""Sentences of ids as one padded array. Importing this needs no torch."""

from collections.abc import Sequence

import numpy as np

from headgates.data.special_tokens import SpecialTokens


def padded(
    sentences: Sequence[Sequence[int] | np.ndarray],
    specials: SpecialTokens,
    *,
    begin: bool = False,
    end: bool = False,
) -> np.ndarray:
    """Return sentences of ids as one array (B, L), int64, padded on the right; begin, end: add the beginning
    or the end to each."""
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    width = int(lengths.max(initial=0))
    out = np.full((len(sentences), begin + width + end), specials.padding, dtype=np.int64)  # (B, L)
    # One masked write for all sentences: row-major order of the mask is the order of the concatenated pieces.
    inside = np.arange(width) < lengths[:, None]
    flat = np.concatenate([np.zeros(0, np.int64), *sentences], dtype=np.int64, casting="unsafe")
    out[:, begin : begin + width][inside] = flat
    if begin:
        out[:, 0] = specials.beginning
    if end:
        out[np.arange(len(sentences)), begin + lengths] = specials.end
    return out
