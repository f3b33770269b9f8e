"""Translate a stream of lines of any length, in order and in bounded memory.

    chunks = read_chunks(fd)                    bytes as they come; b"" says that nothing more is there yet
    lines = split_lines(chunks)                 a line ends at "\\n" and nowhere else; None: nothing more yet
    for found in translated(translator, windows(lines, most=1000), longest=1000):
        ...                                     the translations of the next lines, a list for each

Each part is an iterator that takes from the one before it only what it needs, so no more than one window is
ever read ahead. What is wrong with a line raises DataError after everything before that line has come out.
"""

import os
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from headgates.data.atomic_file import atomic_file
from headgates.data.special_tokens import MOST_UNKNOWN
from headgates.data.text import DataError
from headgates.data.text_file import decode_line
from headgates.models.line_translator import LineTranslator, RankedTranslation

READ_BYTES = 1 << 16  # bytes of one read: what a pipe holds
LONGEST_LINE = 1 << 20  # bytes; text without line ends would otherwise be read whole
WINDOW_CHARACTERS = 1 << 20  # of all lines of a window
FIRST_WINDOW = (
    32  # lines; each window that is filled doubles the next one, so that the first translations come soon
)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_TEXT = {  # how a first line begins that is no UTF-8 at all, and the cure
    b"\xff\xfe": "this is UTF-16, convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "this is UTF-16, convert it: iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "this is gzip, unpack it first: gunzip -c FILE | ...",
    b"\x28\xb5\x2f\xfd": "this is Zstandard, unpack it first: unzstd -c FILE | ...",
}
NOT_UTF8 = (
    "correct that line, convert the text (iconv -f ITS-ENCODING -t UTF-8), or give --not-utf8 empty to go on "
    "without it"
)
ONE_LINE = str.maketrans("\n\r", "  ")
ONE_CELL = str.maketrans("\n\r\t", "   ")


def read_chunks(fd: int, *, wait: float = 0.1) -> Iterator[bytes]:
    """The bytes of an open file descriptor as they come, to its end; b"" wherever nothing more comes within
    `wait` seconds."""
    while chunk := os.read(fd, READ_BYTES):
        yield chunk
        if not _more(fd, wait):
            yield b""


def _more(fd: int, wait: float) -> bool:
    try:
        return bool(select.select([fd], [], [], wait)[0])
    except (
        OSError,
        ValueError,
    ):  # Windows can ask sockets alone; then each read is translated before the next
        return False


def split_lines(
    chunks: Iterable[bytes],
    *,
    name: str = "standard input",
    left_empty: Callable[[str], None] | None = None,
) -> Iterator[str | None]:
    r"""The lines of UTF-8 text, without their "\n" or "\r\n" and without a byte-order mark; None for an empty
    chunk.

    "\r", U+2028 and the like inside a line do not end it. What follows the last "\n" is a line unless it is
    empty. Raises DataError, naming `name` and the line's number, from 1, at a line over LONGEST_LINE bytes
    and at bytes that are not UTF-8. With `left_empty` a line of such bytes is empty, and `left_empty` is
    called with the reason, unless the first line shows another kind of file."""
    number, rest = 0, b""
    for chunk in chunks:
        if not chunk:
            yield None
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for raw in whole:
            number += 1
            yield _decode(raw, number, name, left_empty)
        if len(rest) > LONGEST_LINE:  # seen before its end, which may never come
            _decode(rest, number + 1, name, None)
    if rest and not (number == 0 and rest == BYTE_ORDER_MARK):
        yield _decode(rest, number + 1, name, left_empty)


def _decode(raw: bytes, number: int, name: str, left_empty: Callable[[str], None] | None) -> str:
    if len(raw) > LONGEST_LINE:
        raise DataError(
            f"{name}, line {number} is longer than {LONGEST_LINE:,} bytes; expected a sentence a line, "
            "each ended by a newline"
        )
    other = next((cure for sign, cure in NOT_TEXT.items() if number == 1 and raw.startswith(sign)), None)
    raw = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
    cure = NOT_UTF8 if left_empty is None else "its translation is left empty"
    try:
        return decode_line(raw, number, name, other or cure).removesuffix("\r")
    except DataError as error:
        if left_empty is None or other:
            raise
        left_empty(str(error))
        return ""


def windows(lines: Iterable[str | None], *, most: int, first: int = FIRST_WINDOW) -> Iterator[list[str]]:
    """The lines, in order, in lists of at most `most` lines and about WINDOW_CHARACTERS characters; none is
    empty.

    The first list has at most `first` lines, and each one that is filled lets the next be twice as long. None
    among the lines (nothing more is there yet) ends a list early. A DataError of `lines` is raised after the
    lines before it have been given."""
    size, window, characters = min(first, most), [], 0
    try:
        for line in lines:
            if line is not None:
                window.append(line)
                characters += len(line)
            filled = len(window) >= size
            if filled or characters >= WINDOW_CHARACTERS or (window and line is None):
                yield window
                window, characters = [], 0
                size = min(2 * size, most) if filled else size
    except DataError:
        if window:
            yield window
        raise
    if window:
        yield window


def translated(
    translator: LineTranslator,
    texts: Iterable[list[str]],
    *,
    longest: int,
    limit: str = "",
    beam: int | None = None,
    length_penalty: float | None = None,
    left_empty: Callable[[str], None] | None = None,
    tell: Callable[[str], None] | None = None,
    name: str = "standard input",
) -> Iterator[list[list[RankedTranslation]]]:
    """For every list of lines the n best translations of each line, in order; a line without pieces has one,
    which is empty.

    longest: pieces that a line may have; limit: what they are called in errors. With `left_empty`, a longer
    one is translated as an empty line and `left_empty` is called with the reason; without, it raises
    DataError, naming its number, from 1, after the lines before it have come out. `tell` hears once of lines
    in a language or script that the vocabulary does not know."""
    done = 0
    for lines in texts:
        stop, pieces = None, translator.source_vocab.encode(lines)
        share = 0.0 if tell is None else translator.source_vocab.specials.unknown_share(pieces)
        if tell is not None and share > MOST_UNKNOWN:
            where = f"line {done + 1}" if len(lines) == 1 else f"lines {done + 1} to {done + len(lines)}"
            tell(
                f"{name}, {where}: {share:.0%} of the pieces are unknown to the model, which was trained on "
                "another language or script; expect no translation of them"
            )
            tell = None
        lengths = [len(ids) for ids in pieces]
        for i, length in enumerate(lengths):
            if length <= longest:
                continue
            what = f"{name}, line {done + i + 1} has {length} pieces, more than {limit or longest}"
            if left_empty is None:
                stop = DataError(
                    f"{what}; split it into sentences, one a line, or give --too-long empty to go on "
                    "without it"
                )
                lines = lines[:i]
                break
            left_empty(f"{what}; its translation is left empty")
            lines = [*lines[:i], "", *lines[i + 1 :]]
        if lines:
            yield translator.translate_n_best(lines, beam=beam, length_penalty=length_penalty)
        if stop is not None:
            raise stop
        done += len(lines)


def as_text(best: Sequence[RankedTranslation], number: int, *, n_best: int = 0, scores: bool = False) -> str:
    """What is written for an input line, "\\n" included: its best translation on one line, or with n_best
    so many lines, fewer where there are fewer: an empty line has one translation.

    Columns are parted by tabs: the line's number (with n_best), score and log probability (with scores), the
    text. A line end or, beside other columns, a tab in a text becomes a space."""
    table = ONE_CELL if n_best or scores else ONE_LINE
    written = []
    for one in best[: n_best or 1]:
        cells = [str(number)] if n_best else []
        if scores:
            cells += [f"{one.score:.4f}", f"{one.log_prob:.4f}"]
        written.append("\t".join([*cells, one.text.translate(table)]) + "\n")
    return "".join(written)


def output_file(path: str) -> AbstractContextManager[BinaryIO]:
    """Return the `atomic_file` of translate.py's --output; a symbolic link stays, and the file that it points
    to is replaced.

    Raises ValueError if `path` is a folder, a device or a pipe."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        kind = "folder" if target.is_dir() else "device or pipe, which > writes to"
        raise ValueError(f"--output {path} is a {kind}; expected the name of a file")
    return atomic_file(target)
