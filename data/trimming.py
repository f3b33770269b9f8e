"""A vocabulary with some of its pieces: those that a text uses, and those without which the tokenizer could
not cut that text into the same pieces, or could not write another text at all.

A unigram model takes the best path through the pieces that a line can be cut into. Without pieces that are
on no best path the paths are fewer and the best one stays, as long as an unknown character costs the same,
which depends on the lowest and the highest score of all. Byte-pair encoding merges neighbours step by step,
so the pieces on the way to one that stays have to stay too; then each step of the text finds its best pair as
before. Any text can be written with single characters, bytes and the special pieces, which always stay.
Kudo 2018 (arXiv:1804.10959); Sennrich et al. 2016 (arXiv:1508.07909).

Each kind of tokenizer is a line of `TRIMMERS`.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from headgates.configs.registry import imported
from headgates.data.text import DataError, reworded
from headgates.data.vocab import VOCAB_ABOUT, Vocab, Vocabulary, read_about

Ids = set[int]
Kept = tuple[list[int], list[int]]  # of source and target: the old id of every new one, in order
# kind -> "module:function": f(folder, source, target, used) -> Kept; it writes the tokenizer's files
TRIMMERS: dict[str, str] = {
    "huggingface": "headgates.data.hf_trim:trim",
    "marian": "headgates.data.marian_vocab:trim",
}
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5  # types of SentencePiece's pieces that are made of characters
BPE = 2  # its model type
WIDTHS = {1: 8, 5: 4}  # bytes of a number, by the wire type of protocol buffers


def trimmed_vocabs(folder: Path, source: Vocabulary, target: Vocabulary, used: tuple[Ids, Ids]) -> Kept:
    """Write the tokenizer's files, with the pieces that are needed for those used, into a folder, and return
    which these are. Special tokens stay. Raises DataError at a tokenizer that cannot be trimmed."""
    for vocab, ids in zip((source, target), used, strict=True):
        ids.update(vocab.specials.always_known)
    if source.path.name == VOCAB_ABOUT:
        kind = read_about(source.path)["kind"]
        if kind not in TRIMMERS:
            raise DataError(f"a tokenizer of kind {kind} cannot be trimmed; these can: {', '.join(TRIMMERS)}")
        kept: Kept = imported(TRIMMERS[kind])(folder, source, target, used)
        return kept
    if source is target:
        kept_by_both = trim_pieces(folder / "vocab.model", source, used[0] | used[1])
        return kept_by_both, kept_by_both
    return (
        trim_pieces(folder / "vocab.src.model", source, used[0]),
        trim_pieces(folder / "vocab.tgt.model", target, used[1]),
    )


def trim_pieces(place: Path, vocab: Any, used: Ids, *, multiple: int = 1) -> list[int]:
    """Write a SentencePiece model whose pieces' numbers are the model's ids, and return those that stay. The
    first of the others stay too until there is a multiple of so many; that changes no line either."""
    assert isinstance(vocab, Vocab)  # the one kind without a vocab.json
    file = PieceFile(vocab.path)
    stay = file.needed(set(vocab.pieces(sorted(used))))
    others = [piece.name for piece in file.pieces if piece.name not in stay]
    stay |= set(others[: -len(stay) % multiple])
    place.write_bytes(file.only(stay))
    return [i for i, piece in enumerate(file.pieces) if piece.name in stay]


def merged_symbols(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> set[str]:
    """Every symbol that byte-pair encoding has on its way from `symbols` on: the two neighbours of lowest
    rank become one, of equal ones the first, until none has a rank. O(L^2) of L symbols."""
    left = list(symbols)
    seen = set(left)
    while True:
        ranked = [(found, i) for i, pair in enumerate(pairwise(left)) if (found := rank(*pair)) is not None]
        if not ranked:
            return seen
        _, i = min(ranked)
        left[i : i + 2] = ["".join(left[i : i + 2])]
        seen.add(left[i])


class Piece(NamedTuple):
    name: str
    score: float
    kind: int
    raw: bytes  # the field of the file


class PieceFile:
    """The pieces of a SentencePiece model in the order of their numbers, and what else its file holds."""

    def __init__(self, path: Path) -> None:
        self.pieces: list[Piece] = []
        self.rest, self.is_bpe = b"", False
        with reworded(f"{path} is not a SentencePiece model", "copy it again"):
            for number, value, raw in fields(path.read_bytes()):
                if number == 1:
                    own = {each: found for each, found, _ in fields(value)}
                    score = struct.unpack("<f", own[2])[0] if 2 in own else 0.0
                    self.pieces.append(Piece(own[1].decode(), score, own.get(3, NORMAL), raw))
                else:
                    self.rest += raw
                    if number == 2:  # how it was trained
                        self.is_bpe = dict(each[:2] for each in fields(value)).get(3) == BPE

    def needed(self, used: set[str]) -> set[str]:
        """The names of the pieces that stay where these are used."""
        normal = [piece for piece in self.pieces if piece.kind == NORMAL]
        stay = {piece.name for piece in self.pieces if piece.kind != NORMAL}
        stay |= {piece.name for piece in normal if len(piece.name) == 1 or piece.name in used}
        if not self.is_bpe:
            by_score = sorted(normal, key=lambda piece: piece.score)
            return stay | {piece.name for piece in (*by_score[:1], *by_score[-1:])}
        made = (NORMAL, USER_DEFINED, UNUSED)
        ranks = {piece.name: -piece.score for piece in self.pieces if piece.kind in made}
        on_the_way = (merged_symbols(name, lambda a, b: ranks.get(a + b)) for name in stay & ranks.keys())
        return stay.union(*on_the_way) & {piece.name for piece in self.pieces}

    def only(self, names: set[str]) -> bytes:
        """The file with the pieces of these names alone."""
        return b"".join(piece.raw for piece in self.pieces if piece.name in names) + self.rest


def fields(message: bytes) -> Iterator[tuple[int, Any, bytes]]:
    """The number, the value (an int, or bytes) and all bytes of each field of a message of protocol buffers.
    https://protobuf.dev/programming-guides/encoding"""
    at = 0

    def varint() -> int:
        nonlocal at
        found, shift = 0, 0
        while True:
            byte = message[at]
            found, at, shift = found | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                return found

    while at < len(message):
        start, key = at, varint()
        if key & 7 == 0:
            yield key >> 3, varint(), message[start:at]
            continue
        size = varint() if key & 7 == 2 else WIDTHS[key & 7]
        at += size
        yield key >> 3, message[at - size : at], message[start:at]


def numbered_needs(
    ids: Mapping[str, int], cutters: Iterable[PieceFile], used: Ids
) -> tuple[list[int], list[bytes]]:
    """For a dictionary that numbers the pieces of SentencePiece models: the ids that stay, in order, and the
    models' new files. Entries that no model makes, such as languages, stay, and so do pieces that the
    dictionary has not: they are unknown as before."""
    names = {name for name, i in ids.items() if i in used}
    stay, files, made = set(used), list[bytes](), set[str]()
    for cutter in cutters:
        own = {piece.name for piece in cutter.pieces}
        needed = cutter.needed(names | (own - ids.keys()))
        files.append(cutter.only(needed))
        stay |= {ids[name] for name in needed & ids.keys()}
        made |= own
    stay |= {i for name, i in ids.items() if name not in made}
    return sorted(stay), files
