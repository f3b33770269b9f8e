"""A lexical shortlist: which target pieces a source piece may be translated into. With one the output layer
computes these rows alone, which is what is left to save once a small model's layers are cheap.

A batch's candidates are those of all its sources, as in Marian and in CTranslate2. The file is Marian's own
binary one, so that either reads the other's. Importing this needs no torch.

Read in Marian's sources (data/shortlist.h): the header is six 64-bit numbers, then come the offset of each
source piece's list, 64 bits each and one more than there are pieces, then the lists, 32 bits an id, each in
ascending order. L'Hostis et al. 2016 (arXiv:1610.00072) compare ways to choose the pieces.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headgates.data.atomic_file import atomic_file
from headgates.data.text import DataError
from headgates.data.text_file import GZIP, ZSTANDARD, read_lines

if TYPE_CHECKING:  # a vocabulary needs a tokenizer
    from headgates.data.vocab import Vocabulary

SHORTLIST_FILE = "shortlist.bin"  # beside the weights of its model
SHORTLIST_MAGIC = 0xF11A48D5013417F5
SHORTLIST_HEADER = struct.Struct("<6Q")  # magic, checksum, first, best, offsets, ids
SHORTLIST_CURE = "copy it again, or make it again"
MARIAN_BEST = 100  # what Marian keeps of a text file, of each piece and of the vocabulary's first


@dataclass(frozen=True, eq=False)
class Shortlist:
    """first: the target ids below it are candidates of every source. best: of each source piece so many at
    most were kept. The list of source piece s is ids[offsets[s] : offsets[s + 1]], ascending; offsets has
    one number more than there are source pieces."""

    first: int
    best: int
    offsets: np.ndarray
    ids: np.ndarray

    @classmethod
    def of(cls, lists: Sequence[Iterable[int]], *, first: int = 0, best: int | None = None) -> "Shortlist":
        """The shortlist with these lists, one for each source piece. best: the length of the longest unless
        given."""
        rows = [np.unique(np.fromiter(row, np.int64)) for row in lists]
        lengths = [len(row) for row in rows]
        return cls(
            first,
            max(lengths, default=0) if best is None else best,
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            np.concatenate([np.zeros(0, np.int64), *rows]),
        )

    @property
    def sources(self) -> int:
        """How many source pieces have a list, if only an empty one."""
        return len(self.offsets) - 1

    def of_piece(self, piece: int) -> np.ndarray:
        """The ids of a source piece's own list."""
        return self.ids[self.offsets[piece] : self.offsets[piece + 1]]

    def candidates(self, pieces: Iterable[int], always: Sequence[int] = ()) -> np.ndarray:
        """The ids (n,) that a translation of sources with these pieces may hold, ascending. always: ids that
        are among them in any case."""
        lists = [self.of_piece(piece) for piece in set(pieces)]
        return np.unique(np.concatenate([np.arange(self.first), np.array(always, np.int64), *lists]))

    def for_sources(self, sources: int) -> "Shortlist":
        """The same for so many source pieces, of which the last may have no list: a vocabulary of Marian's
        gets a padding here. Raises DataError where it has lists of more."""
        if self.sources > sources:
            raise DataError(
                f"the shortlist is for {self.sources:,} source pieces, the model has {sources:,}; make one "
                "for its vocabulary"
            )
        return replace(self, offsets=np.pad(self.offsets, (0, sources - self.sources), "edge"))

    def with_more(self, piece: int, ids: Iterable[int]) -> "Shortlist":
        """The list of one source piece has these ids too."""
        lists = [[*self.of_piece(i), *(ids if i == piece else ())] for i in range(self.sources)]
        return Shortlist.of(lists, first=self.first, best=self.best)

    def with_own_pieces(self) -> "Shortlist":
        """Each source piece lists itself too, as Marian has it where both sides have one vocabulary."""
        own = ([*self.of_piece(piece), piece] for piece in range(self.sources))
        return Shortlist.of([*own], first=self.first, best=self.best)

    def without_padding(self, targets: int, end: int) -> "Shortlist":
        """The same for vocabularies without our padding, which is their last piece, as Marian's are. targets:
        of such a vocabulary. Marian reads no last list that is empty: that one has the end then."""
        lists = [own[own < targets] for own in map(self.of_piece, range(self.sources - 1))]
        lists[-1] = lists[-1] if len(lists[-1]) else np.array([end])
        return Shortlist.of(lists, first=min(self.first, targets), best=self.best)

    def check(self, sources: int, targets: int) -> "Shortlist":
        """Return itself. Raises DataError where it is not for vocabularies of these sizes."""
        largest = int(self.ids.max(initial=-1))
        if self.sources != sources or max(largest + 1, self.first) > targets:
            raise DataError(
                f"the shortlist is for {self.sources:,} source pieces and at least "
                f"{max(largest + 1, self.first):,} target pieces, the model has {sources:,} and {targets:,}; "
                "make one for its vocabularies"
            )
        return self

    def write(self, path: Path) -> None:
        """As Marian reads it with `--shortlist FILE`."""
        offsets, ids = self.offsets.astype("<u8"), self.ids.astype("<u4")
        numbers = struct.pack("<4Q", self.first, self.best, len(offsets), len(ids))
        content = numbers + offsets.tobytes() + ids.tobytes()
        with atomic_file(path) as file:
            file.write(struct.pack("<2Q", SHORTLIST_MAGIC, checksum(content)) + content)


def checksum(content: bytes) -> int:
    """Marian's hash of all that follows it, in words of 64 bits; what is left over at the end is not part of
    it (common/hash.h)."""
    seed, mask = 0, 2**64 - 1
    for word in np.frombuffer(content[: len(content) // 8 * 8], "<u8").tolist():
        seed ^= (word + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & mask
    return seed


def read_shortlist(path: Path) -> Shortlist:
    """Read Marian's binary file. Raises DataError where it is none, is cut short or was changed."""
    content = path.read_bytes()
    if len(content) < SHORTLIST_HEADER.size or SHORTLIST_HEADER.unpack_from(content)[0] != SHORTLIST_MAGIC:
        raise DataError(f"{path} is no binary shortlist of Marian's; {SHORTLIST_CURE}")
    _, said, first, best, offsets, ids = SHORTLIST_HEADER.unpack_from(content)
    size = SHORTLIST_HEADER.size + 8 * offsets + 4 * ids
    if len(content) != size or not offsets:
        raise DataError(f"{path} has {len(content):,} bytes, its header says {size:,}; {SHORTLIST_CURE}")
    if checksum(content[16:]) != said:
        raise DataError(f"{path} is not what was written, by its checksum; {SHORTLIST_CURE}")
    found = Shortlist(
        first,
        best,
        np.frombuffer(content, "<u8", offsets, SHORTLIST_HEADER.size).astype(np.int64),
        np.frombuffer(content, "<u4", ids, SHORTLIST_HEADER.size + 8 * offsets).astype(np.int64),
    )
    if found.offsets[0] or found.offsets[-1] != ids or (np.diff(found.offsets) < 0).any():
        raise DataError(f"{path} has lists that overlap or end beyond the file; {SHORTLIST_CURE}")
    return found


def shortlist_in(folder: Path) -> Shortlist | None:
    """The shortlist in the folder of a model, if there is one."""
    path = folder / SHORTLIST_FILE
    return read_shortlist(path) if path.is_file() else None


def read_marian_list(
    path: Path,
    source: "Vocabulary",
    target: "Vocabulary",
    sources: int,
    *,
    first: int = MARIAN_BEST,
    best: int = MARIAN_BEST,
    threshold: float = 0.0,
) -> Shortlist:
    """Marian's file, binary or text, for a model with so many source pieces. first, best, threshold: of a
    text file, as `read_probabilities`. Raises DataError at a file that is none."""
    try:
        found = read_shortlist(path)
    except DataError:
        head = path.read_bytes()[:64]
        if b"\0" in head and not head.startswith((GZIP, ZSTANDARD)):
            raise
        names = piece_numbers(source), piece_numbers(target)
        found = read_probabilities(path, *names, first=first, best=best, threshold=threshold)
    # one vocabulary of Marian's is one file; before the padding, which is ours
    shared = source is target or getattr(source, "file", None) == getattr(target, "file", target)
    found = found.with_own_pieces() if shared else found
    return found.for_sources(sources)


def piece_numbers(vocab: "Vocabulary") -> dict[str, int]:
    return {piece: i for i, piece in enumerate(vocab.pieces(range(len(vocab))))}


def read_probabilities(
    path: Path,
    sources: Mapping[str, int],
    targets: Mapping[str, int],
    *,
    first: int,
    best: int,
    threshold: float = 0.0,
) -> Shortlist:
    """Read Marian's text file, a line for each pair: target piece, source piece, probability. The `best` most
    probable target pieces of each source piece stay that are more probable than the threshold, and the
    `first` of the vocabulary always.

    sources, targets: the id of every piece by its name; pieces without one are passed over, as Marian's
    NULL. Raises DataError at a line that is none."""
    pairs: list[tuple[int, int, float]] = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split()
        try:
            target, source, probability = parts[0], parts[1], float(parts[2])
        except (IndexError, ValueError):
            raise DataError(
                f"{path}, line {number}: expected a target piece, a source piece and a probability, got "
                f"{line[:80]!r}"
            ) from None
        if source in sources and target in targets and probability > threshold:
            pairs.append((sources[source], targets[target], probability))
    rows = np.array([pair[:2] for pair in pairs], np.int64).reshape(-1, 2)
    weights = np.array([pair[2] for pair in pairs], np.float64)
    return Shortlist.of(strongest(rows, weights, max(sources.values()) + 1, best), first=first, best=best)


def strongest(links: np.ndarray, weights: np.ndarray, sources: int, best: int) -> list[np.ndarray]:
    """For each of so many source pieces the `best` target pieces with the largest summed weight, of equal
    ones the lower id.

    links: (n, 2), the ids of a source piece and of the target piece it is linked with, repeated as often as
    they are. weights: (n,)."""
    pairs, place = np.unique(links, axis=0, return_inverse=True)
    sums = np.bincount(place.ravel(), weights, minlength=len(pairs))
    order = np.lexsort((pairs[:, 1], -sums, pairs[:, 0]))  # by source, then from the largest sum on
    pairs = pairs[order]
    begins = np.searchsorted(pairs[:, 0], np.arange(sources + 1))
    return [pairs[low : min(low + best, high), 1] for low, high in pairwise(begins.tolist())]
