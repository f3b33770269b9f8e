"""Parallel text: two files, line n of one translates line n of the other.

A line ends at "\\n" and nowhere else: str.splitlines also cuts at characters that occur inside sentences
(U+2028, U+0085, form feed), after which every later line is paired with the wrong translation."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from headgates.configs.did_you_mean import did_you_mean
from headgates.data.atomic_file import atomic_file
from headgates.data.text import DataError, ParallelText, digest_lines, without_empty

# names that a folder may use; the first one found wins
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev"), "test": ("test",)}
IN_MEMORY = 2**24  # bytes of two aligned files; larger text lies in a store (data/store.py)
# bytes that any gzip file may unpack to, and above them times its own size; text has 3 to 10
SMALL, LARGEST_RATIO = 2**26, 100


@dataclass
class Corpus:
    """A parallel corpus with its three splits. extra: name -> a further test set."""

    train: ParallelText
    valid: ParallelText
    test: ParallelText
    name: str
    description: str
    src: str = ""
    tgt: str = ""
    extra: dict[str, ParallelText] = field(default_factory=dict)

    def split(self, name: str) -> ParallelText:
        """Return the split train, valid or test, or the extra test set of this name. Raises DataError at any
        other name, or where the text has no such split."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra}
        if name not in splits:
            raise DataError(
                f"{self.name} has no split {name!r}{did_you_mean(name, list(splits))}; it has "
                f"{', '.join(splits)}"
            )
        if not len(splits[name]):
            raise DataError(
                f"{self.name} has no {name} text, which is needed here; it has "
                f"{', '.join(s for s in splits if len(splits[s]))}"
            )
        return splits[name]

    def drawn(self, count: int, *, of: int) -> int:
        """Return how many training pairs a sample of so many draws of the first `of` (0: of all); 0 where it
        has them all, or is of 0."""
        return count if count < min(len(self.train), of or len(self.train)) else 0

    def digest(self) -> str:
        """Return the `digest_lines` of the training and validation text; that of a stored text, which takes
        seconds at millions of lines, is kept beside it."""
        valid = self.valid.sources, self.valid.targets
        if self.train.store is None:
            return digest_lines(self.train.sources, self.train.targets, *valid)
        file = self.train.store / f"digest-{digest_lines(*valid)}.txt"
        with suppress(OSError):
            if re.fullmatch(r"[0-9a-f]{12}", kept := file.read_text(encoding="ascii", errors="replace")):
                return kept
        digest = digest_lines(self.train.sources, self.train.targets, *valid)
        with suppress(OSError), atomic_file(file) as draft:  # a cache that is read-only costs seconds only
            draft.write(digest.encode())
        return digest


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file, as `lines_of` gives them."""
    return list(lines_of(path))


def lines_of(path: str | Path) -> Iterator[str]:
    """The lines of a text file, plain or gzip, without white space at their ends; empty lines stay, a
    byte-order mark does not.

    A gzip file is recognised by its first two bytes. Raises DataError if the file is missing or unreadable,
    or a line is not UTF-8."""
    path = Path(path)
    with opened(path) as file:
        for number, line in enumerate(file, start=1):  # bytes are cut at "\n" alone
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise DataError(f"{path} is UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
                if not line:  # a byte-order mark is all that there is
                    return
            yield decode_line(line, number, str(path)).strip()


def decode_line(line: bytes, number: int, name: str, cure: str = "") -> str:
    """Return the text of a line of UTF-8. Raises DataError, naming the file, the line's number and the byte,
    at anything else."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        convert = "or convert the text if it is in another encoding: iconv -f ITS-ENCODING -t UTF-8"
        byte = error.object[error.start]
        raise DataError(
            f"{name}, line {number}: byte {error.start + 1} (0x{byte:02x}) is not UTF-8; "
            f"{cure or f'correct that line, {convert}'}"
        ) from None


def read_pairs(source: str | Path, target: str | Path, *, skip_empty: bool) -> ParallelText:
    """Return the sentence pairs of two aligned files.

    skip_empty: leave out pairs with an empty side and count them under 'empty'; test sets are read without
    it, to keep their line numbers. Raises DataError if the files have different numbers of lines, or no
    text."""
    text = gathered((source, target), partial(pairs_of, source, target), skip_empty=skip_empty)
    if not len(text):
        raise DataError(
            f"{source} and {target} have no pair of lines with text on both sides; expected one sentence a "
            "line"
        )
    return text


def pairs_of(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """The pairs of lines of two aligned files. Raises DataError, at the end, if one of them has more
    lines."""
    sides = lines_of(source), lines_of(target)
    for number, pair in enumerate(zip_longest(*sides), start=1):
        if None in pair:
            lines = [
                number - (line is None) + sum(1 for _ in rest) for line, rest in zip(pair, sides, strict=True)
            ]
            raise DataError(
                f"{source} has {lines[0]:,} lines and {target} has {lines[1]:,}: aligned files have the same "
                "number; "
                f"check that both are whole and that line {number - 1:,} of one translates that of the other"
            )
        yield pair


def gathered(
    files: Sequence[str | Path],
    pairs: Callable[[], Iterable[tuple[str, str]]],
    *,
    skip_empty: bool,
    made_of: Sequence[str] = (),
) -> ParallelText:
    """Return the pairs that the files hold: in memory, or, where the files are large, in a store that is made
    once.

    skip_empty: as `read_pairs` has it. pairs: reads them, if they are not in a store yet; its errors are this
    function's. made_of: what else the pairs depend on."""
    sizes = [
        Path(file).stat().st_size if Path(file).is_file() else 0 for file in files
    ]  # who reads says what is missing
    if sum(sizes) > IN_MEMORY:
        from headgates.data.store import (
            stored_text,  # here, because pyarrow takes time to load and --help does not need it
        )

        return stored_text(files, pairs, skip_empty=skip_empty, made_of=made_of)
    skipped: dict[str, int] = {}
    kept = list(without_empty(pairs(), skipped) if skip_empty else pairs())
    return ParallelText([source for source, _ in kept], [target for _, target in kept], skipped)


def read_folder(folder: str | Path, *, src: str | None, tgt: str | None) -> Corpus:
    """Return the corpus of a folder. Raises DataError as `folder_files` does, and where a file cannot be
    read."""
    folder = Path(folder)
    files = folder_files(folder, src=src, tgt=tgt)
    texts = {split: read_pairs(*files[split], skip_empty=split != "test") for split in SPLIT_NAMES}
    about = f"parallel text in {folder}, {src} to {tgt}"
    name = folder.resolve().name
    return Corpus(
        texts["train"],
        texts["valid"],
        texts["test"],
        name=name,
        description=about,
        src=src or "",
        tgt=tgt or "",
    )


def folder_files(folder: Path, *, src: str | None, tgt: str | None) -> dict[str, tuple[Path, Path]]:
    """Return the source and the target file of every split of a folder with {train,valid,test}.{src,tgt},
    plain or .gz; the validation files may also be called val or dev.

    Raises DataError, which lists what the folder has, if a language or a split is missing."""
    found = _files_by_split(folder)
    languages = sorted(set().union(*(by_language.keys() for by_language in found.values())))
    if not languages:
        raise DataError(
            f"{folder} has no parallel text: expected files such as train.en and train.de, valid.*, test.*, "
            "plain or .gz"
        )
    if src is None or tgt is None:
        raise DataError(
            f"say which language to translate from and to: --src and --tgt; {folder} has "
            f"{', '.join(languages)}"
        )
    if src == tgt:
        raise DataError(f"--src and --tgt are both {src!r}; {folder} has {', '.join(languages)}")
    for language in (src, tgt):
        if language not in languages:
            hint = did_you_mean(language, languages)
            raise DataError(
                f"{folder} has no file for language {language!r}{hint}; it has {', '.join(languages)}"
            )
    files = {}
    for split, names in SPLIT_NAMES.items():
        name = next((n for n in names if {src, tgt} <= found.get(n, {}).keys()), None)
        if name is None:
            present = (
                ", ".join(sorted(path.name for n in names for path in found.get(n, {}).values())) or "none"
            )
            expected = " or ".join(f"{n}.{src} and {n}.{tgt}" for n in names)
            raise DataError(
                f"{folder} has no {split} text for {src}-{tgt}: expected {expected}, plain or .gz; found "
                f"{present}"
            )
        files[split] = found[name][src], found[name][tgt]
    return files


def _files_by_split(folder: Path) -> Mapping[str, Mapping[str, Path]]:
    """split name -> language -> file. What follows the first dot is the language; a plain file goes before
    its .gz."""
    names = {name for names in SPLIT_NAMES.values() for name in names}
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):  # 'train.en' sorts before 'train.en.gz'
        split, _, language = path.name.removesuffix(".gz").partition(".")
        if split in names and language and path.is_file():
            found.setdefault(split, {}).setdefault(language, path)
    return found


def no_file(path: Path) -> DataError:
    """The error for a file that is not there: it names what is."""
    if not path.parent.is_dir():
        return DataError(f"no file {path}: there is no folder {path.parent}")
    entries = sorted(entry.name for entry in path.parent.iterdir())
    names = ", ".join(entries[:12]) + (", ..." if len(entries) > 12 else "")
    return DataError(
        f"no file {path}{did_you_mean(path.name, entries)}; {path.parent} has {names or 'no files'}"
    )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A text file, plain or gzip, open for its bytes. Raises DataError if it is missing, unreadable or
    damaged."""
    try:
        with path.open("rb") as file:
            if not file.peek(2).startswith(b"\x1f\x8b"):
                yield file
                return
            try:
                yield io.BufferedReader(_Unpacked(file, path), 2**20)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{path} is a damaged gzip file ({error}); copy or download it again"
                ) from error
    except (FileNotFoundError, NotADirectoryError):
        raise no_file(path) from None
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; expected a text file, plain or .gz"
        ) from error


class _Unpacked(io.RawIOBase):
    """The content of a gzip file. Raises DataError where it grows beyond what text does: memory or the disk
    would end first."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path, self.packed, self.size = path, path.stat().st_size, 0
        self.most = max(SMALL, LARGEST_RATIO * self.packed)
        self.file = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.file.read1(len(buffer))
        buffer[: len(block)] = block
        self.size += len(block)
        if self.size > self.most:
            raise DataError(
                f"{self.path} has {self.packed:,} bytes and unpacks to more than {self.most / 2**20:,.0f} "
                "MiB; expected text, which grows "
                "tenfold at most; if this is right, unpack it (gunzip --keep) and give the plain file"
            )
        return len(block)
