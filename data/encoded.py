"""The pairs of a text as ids of pieces, in Arrow: those of a small text in memory, those of a large one
mapped from its store, page by page as batches ask for them."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

Pair = tuple[list[int], list[int]]
Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")


def ids_type(largest: int) -> pa.DataType:
    """The type of ids up to `largest`."""
    return pa.uint16() if largest < 2**16 else pa.int32()


def record_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], ids: pa.DataType
) -> pa.RecordBatch:
    """The ids of some pairs, as the columns `source` and `target`."""
    columns = [pa.array(side, pa.large_list(ids)) for side in (sources, targets)]
    return pa.record_batch(columns, names=list(SIDES))


class EncodedPairs(Sequence[Pair]):
    """(source ids, target ids) of some pairs, without special tokens.

    batches: record batches of equally many pairs each, but for the last. numbers: which of their pairs these
    are, from 0, in growing order; all unless given."""

    def __init__(self, batches: Sequence[pa.RecordBatch], numbers: np.ndarray | None = None) -> None:
        self.batches = batches
        self.total = sum(batch.num_rows for batch in batches)
        numbers = np.arange(self.total) if numbers is None else numbers
        self.numbers = numbers.astype(np.min_scalar_type(self.total))
        self._rows = max(1, batches[0].num_rows) if batches else 1
        # of every batch: where each sentence begins, and the last ends; the ids of all its sentences
        self._sides = {side: [begins_and_ids(batch.column(side)) for batch in batches] for side in SIDES}

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        source, target = self.arrays(item)
        return source.tolist(), target.tolist()

    def arrays(self, item: int) -> tuple[np.ndarray, np.ndarray]:
        """A pair as two views of the ids."""
        number, row = divmod(int(self.numbers[item]), self._rows)
        begins, source = self._sides["source"][number]
        target_begins, target = self._sides["target"][number]
        return source[begins[row] : begins[row + 1]], target[target_begins[row] : target_begins[row + 1]]

    def only(self, numbers: np.ndarray) -> "EncodedPairs":
        """Of all pairs of the batches, those with these numbers."""
        return EncodedPairs(self.batches, numbers)

    def lengths(self, side: Side) -> np.ndarray:
        """(N,) ids of each sentence, in as few bytes as hold one more than the longest."""
        every = [np.diff(begins) for begins, _ in self._sides[side]]
        kind = np.min_scalar_type(max((int(each.max(initial=0)) for each in every), default=0) + 1)
        return np.concatenate([np.zeros(0, kind), *(each.astype(kind) for each in every)])[self.numbers]

    def occurrences(self, side: Side, piece: int) -> int:
        """How often the id occurs on a side of these pairs."""
        return sum(int((ids == piece).sum()) for ids in self.flat(side))

    def flat(self, side: Side) -> Iterator[np.ndarray]:
        """The ids of a side of these pairs, in order, as one array for each record batch."""
        chosen, first = np.zeros(self.total, dtype=bool), 0
        chosen[self.numbers] = True
        for begins, ids in self._sides[side]:
            here = chosen[first : first + len(begins) - 1]
            first += len(here)
            yield ids if here.all() else ids[np.repeat(here, np.diff(begins))]


def begins_and_ids(column: pa.LargeListArray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of n sentences begins and the last ends, (n + 1,), and the ids of them all, both without a
    copy."""
    return column.offsets.to_numpy(), column.values.to_numpy()
