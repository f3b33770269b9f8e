"""The binarised text of fairseq-preprocess (--dataset-impl mmap) as a corpus: `--data fairseq:DIR`.

DIR has dict.SRC.txt, dict.TGT.txt and for every split train.SRC-TGT.SRC.idx and .bin, and the same for TGT.
An .idx file is the bytes MMIDIDX\\0\\0, a version (u64, 1), the code of the ids' type (u8), the number of
sentences (u64), their lengths (i32 each) and the bytes at which they begin in the .bin file (i64 each). The
.bin file is ids alone; a sentence's last is that of </s>.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headgates.configs.own_file import own_file
from headgates.data.fairseq_vocab import MARK, SPECIALS, UNKNOWN, Dictionary, join_pieces
from headgates.data.parallel import SPLIT_NAMES
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQ")
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}  # whole numbers
DATA_FILE = re.compile(
    r"(?P<split>[A-Za-z]+)(?P<part>\d*)\.(?P<src>[^.-]+)-(?P<tgt>[^.-]+)\.(?P<language>[^.-]+)\.idx"
)


def read_binarised(place: str, *, src: str | None, tgt: str | None, whole_words: bool = True) -> Corpus:
    """The corpus of a folder of binarised data. Splits that the folder lacks are empty; train1, train2, ...
    continue train; valid1, test1, ... are test sets of their own.

    whole_words: put the pieces of BPE together, as readers of a model with its codes want them, so that
    encoding a line gives its ids again. Where a piece is unknown, nobody can say whether it ended a word: it
    and the word after it stay in pieces, which `FairseqVocab` takes as they are. Raises DataError, naming the
    file, where one is missing or broken."""
    folder = Path(place)
    if not folder.is_dir():
        raise DataError(
            f"no folder {folder}; fairseq:DIR is a folder that fairseq-preprocess wrote (--dataset-impl mmap)"
        )
    src, tgt, names = splits_of(folder, src, tgt)
    text = words if whole_words else " ".join
    both = [(language, Dictionary(folder / f"dict.{language}.txt")) for language in (src, tgt)]
    texts: dict[str, ParallelText] = {}
    for name in names:
        sides = [
            [text(pieces) for pieces in pieces_of(folder / f"{name}.{src}-{tgt}.{language}", dictionary)]
            for language, dictionary in both
        ]
        if len(sides[0]) != len(sides[1]):
            raise DataError(
                f"{folder}: {name} has {len(sides[0]):,} sentences of {src} and {len(sides[1]):,} of "
                f"{tgt}; run fairseq-preprocess again"
            )
        texts[name] = ParallelText(sides[0], sides[1])
    train, valid, test = (texts.pop(name, ParallelText([], [])) for name in SPLIT_NAMES)
    for name in [name for name in texts if name.startswith("train")]:
        more = texts.pop(name)
        train = ParallelText([*train.sources, *more.sources], [*train.targets, *more.targets])
    train, valid = without_empty_lines(train), without_empty_lines(valid)
    about = f"binarised text in {folder}, {src} to {tgt}"
    return Corpus(train, valid, test, folder.resolve().name, about, src, tgt, texts)


def read_pieces(place: str, *, src: str | None, tgt: str | None) -> Corpus:
    """`read_binarised` whose lines keep the pieces of BPE apart."""
    return read_binarised(place, src=src, tgt=tgt, whole_words=False)


def index_names(folder: Path) -> list[re.Match[str]]:
    """The names of a folder's index files, in their parts."""
    return [match for path in folder.glob("*.idx") if (match := DATA_FILE.fullmatch(path.name))]


def language_pairs(folder: Path) -> set[tuple[str, str]]:
    """The (source, target) languages in the names of a folder's index files."""
    return {(match["src"], match["tgt"]) for match in index_names(folder)}


def splits_of(folder: Path, src: str | None, tgt: str | None) -> tuple[str, str, list[str]]:
    """The languages of a folder and the names of its splits, in order. Raises DataError where the languages
    are not its own."""
    known = language_pairs(folder)
    pairs = [pair for pair in sorted(known) if src in (None, pair[0]) and tgt in (None, pair[1])]
    if len(pairs) != 1:
        there = ", ".join(map("-".join, sorted(known))) or "no files such as train.en-de.en.idx"
        wanted = f" for {src or 'any'}-{tgt or 'any'}" if src or tgt else ""
        raise DataError(
            f"{folder} has {len(pairs) or 'no'} binarised texts{wanted}: it has {there}; --src and --tgt "
            "name one"
        )
    ((src, tgt),) = pairs
    names = {
        (match["split"], int(match["part"] or -1)): match["split"] + match["part"]
        for match in index_names(folder)
        if (match["src"], match["tgt"]) == (src, tgt)
    }
    return src, tgt, [names[key] for key in sorted(names)]


def pieces_of(path: Path, dictionary: Dictionary) -> Iterator[list[str]]:
    """The pieces of every sentence of path.idx and path.bin."""
    for number, ids in enumerate(sentences(path)):
        if not 0 <= ids.min(initial=0) <= ids.max(initial=0) < len(dictionary):
            raise DataError(
                f"{path}.bin, sentence {number}: ids {ids.min()} to {ids.max()}, but {dictionary.path} "
                f"has {len(dictionary)} entries; take the dictionary that the text was binarised with"
            )
        kept = ids[:-1] if len(ids) and ids[-1] == SPECIALS.end else ids
        yield [dictionary.symbols[i] for i in kept.tolist()]


def sentences(path: Path) -> Iterator[np.ndarray]:
    """The ids (length,) of every sentence of path.idx and path.bin, in order."""
    index, data = (own_file(path.parent, f"{path.name}{end}") for end in (".idx", ".bin"))
    for file in (index, data):
        if not file.is_file():
            raise DataError(f"no file {file}: binarised text is an .idx and a .bin file for each language")
    head = index.read_bytes()
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise DataError(
            f"{index} is no index of binarised text (it does not begin with MMIDIDX); run "
            "fairseq-preprocess with --dataset-impl mmap"
        )
    _, version, code, count = HEADER.unpack_from(head)
    if version != 1 or code not in TYPES or len(head) != HEADER.size + 12 * count:
        raise DataError(
            f"{index}: version {version}, type {code}, {count:,} sentences in {len(head):,} bytes; expected "
            f"version 1, a type of whole numbers ({', '.join(map(str, TYPES))}) and 12 bytes a sentence"
        )
    kind = np.dtype(TYPES[code])
    lengths = np.frombuffer(head, "<i4", count, HEADER.size).astype(np.int64)
    begins = np.frombuffer(head, "<i8", count, HEADER.size + 4 * count)
    size = data.stat().st_size
    outside = begins > size - lengths * kind.itemsize
    wrong = (lengths < 0) | (begins < 0) | (begins % kind.itemsize != 0) | outside
    if wrong.any():
        number = int(wrong.argmax())
        raise DataError(
            f"{data} has {size:,} bytes, but sentence {number} should be {lengths[number]} ids from byte "
            f"{begins[number]}; it and "
            f"{index.name} do not belong together, or one is cut short: copy both again"
        )
    if lengths.sum() * kind.itemsize > size:
        raise DataError(f"{index}: its sentences overlap in the {size:,} bytes of {data}; copy both again")
    ids = np.memmap(data, kind, "r") if size >= kind.itemsize else np.empty(0, kind)
    for begin, length in zip((begins // kind.itemsize).tolist(), lengths.tolist(), strict=True):
        yield ids[begin : begin + length]


def words(pieces: list[str]) -> str:
    """The text of pieces, words put together except around unknown ones (see `read_binarised`)."""
    out: list[str] = []
    begin, whole = 0, False  # the first piece of the word; whether it follows an unknown one
    for end, piece in enumerate(pieces, start=1):
        if piece.endswith(MARK) and end < len(pieces):
            continue
        word = pieces[begin:end]
        out.append(" ".join(word) if whole or UNKNOWN in word or piece.endswith(MARK) else join_pieces(word))
        begin, whole = end, piece == UNKNOWN
    return " ".join(out)


def without_empty_lines(text: ParallelText) -> ParallelText:
    return text.only([i for i in range(len(text)) if text.sources[i] and text.targets[i]], reason="empty")
