"""Parallel text: two files, line n of one translates line n of the other.

A line ends at "\\n" and nowhere else: str.splitlines also cuts at characters that occur inside sentences
(U+2028, U+0085, form feed), after which every later line is paired with the wrong translation."""

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.data.atomic_file import atomic_file
from headgates.data.text import DataError, ParallelText, digest_lines, line_error, without_empty

T = TypeVar("T")
# names that a folder may use; the first one found wins
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev", "validation"), "test": ("test",)}
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
        there = {split: text for split, text in splits.items() if len(text)}
        if name not in there:
            raise DataError(
                f"{self.name} has no {name!r} text{did_you_mean(name, there)}; it has {', '.join(there)}"
            )
        return there[name]

    def sampled(self, count: int, *, of: int) -> int:
        """Return how many training pairs a sample of so many takes of the first `of` (0: of all); 0 where it
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
            return file.read_text(encoding="ascii")
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
        cure = cure or "correct that line, or convert the text: iconv -f ITS-ENCODING -t UTF-8"
        byte = error.object[error.start]
        raise line_error(
            name, number, f"byte {error.start + 1} (0x{byte:02x}) is not UTF-8; {cure}"
        ) from None


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line of a .jsonl file that is not empty. Raises DataError, naming the
    line, at anything but an object."""
    for number, line in enumerate(lines_of(path), start=1):
        if line:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise line_error(path, number, f"not JSON ({error}); expected an object a line") from None
            if not isinstance(content, dict):
                raise line_error(path, number, f"expected a JSON object, got {shortened(content)}")
            yield number, content


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
    key: Sequence[str] = (),
) -> ParallelText:
    """Return the pairs that the files hold: in memory, or, where the files are large, in a store that is made
    once.

    skip_empty: as `read_pairs` has it. pairs: reads them, if they are not in a store yet; its errors are this
    function's. key: what else the pairs depend on."""
    # who reads says what is missing
    if sum(Path(file).stat().st_size for file in files if Path(file).is_file()) > IN_MEMORY:
        # here, because pyarrow takes time to load and --help does not need it
        from headgates.data.store import stored_text

        return stored_text(files, pairs, skip_empty=skip_empty, key=key)
    skipped: dict[str, int] = {}
    kept = list(without_empty(pairs(), skipped) if skip_empty else pairs())
    return ParallelText([source for source, _ in kept], [target for _, target in kept], skipped)


def read_folder(folder: str | Path, *, src: str | None, tgt: str | None) -> Corpus:
    """Return the corpus of a folder. Raises DataError as `folder_files` does, and where a file cannot be
    read."""
    files = folder_files(Path(folder), src=src, tgt=tgt)
    train, valid, test = (read_pairs(*files[split], skip_empty=split != "test") for split in SPLIT_NAMES)
    name, about = Path(folder).resolve().name, f"parallel text in {folder}, {src} to {tgt}"
    return Corpus(train, valid, test, name, about, src or "", tgt or "")


def folder_files(folder: Path, *, src: str | None, tgt: str | None) -> dict[str, tuple[Path, Path]]:
    """Return the source and the target file of every split of a folder with {train,valid,test}.{src,tgt},
    plain or .gz; the validation files may also be called val, dev or validation.

    Raises DataError, which lists what the folder has, if a language or a split is missing."""
    found: dict[str, dict[str, Path]] = {}  # split's name -> language -> file
    names = {name for names in SPLIT_NAMES.values() for name in names}
    for path in sorted(folder.iterdir()):  # 'train.en' sorts before 'train.en.gz' and is taken
        name, _, language = path.name.removesuffix(".gz").partition(".")
        if name in names and language and path.is_file():
            found.setdefault(name, {}).setdefault(language, path)
    languages = sorted(set().union(*found.values()))
    if not languages:
        raise DataError(
            f"{folder} has no parallel text: expected files such as train.en and train.de, valid.*, test.*, "
            "plain or .gz"
        )
    source, target = two_languages(src, tgt, languages, str(folder))
    both = {name: (of[source], of[target]) for name, of in found.items() if {source, target} <= of.keys()}
    return {split: named_split(both, split, f"{folder}, {source}-{target},") for split in SPLIT_NAMES}


def two_languages(src: str | None, tgt: str | None, known: Sequence[str], place: str) -> tuple[str, str]:
    """The languages that --src and --tgt name. Raises DataError unless these are two of those known."""
    if src is None or tgt is None or src == tgt or not {src, tgt} <= set(known):
        raise DataError(
            f"expected two languages for --src and --tgt, of those in {place}: {', '.join(known)}; got {src} "
            f"and {tgt}"
        )
    return src, tgt


def named_split(there: Mapping[str, T], split: str, place: str) -> T:
    """What is there of a split, by the first of its names. Raises DataError where there is nothing."""
    for name in SPLIT_NAMES[split]:
        if name in there:
            return there[name]
    names = " or ".join(SPLIT_NAMES[split])
    raise DataError(
        f"{place} has no {split} text: expected {names}; found {', '.join(sorted(there)) or 'none'}"
    )


def no_file(path: Path) -> DataError:
    """The error for a file that is not there: it names what is."""
    if not path.parent.is_dir():
        return DataError(f"no file {path}: there is no folder {path.parent}")
    entries = sorted(entry.name for entry in path.parent.iterdir())
    names = ", ".join(entries[:12]) + (", ..." if len(entries) > 12 else "")
    return DataError(
        f"no file {path}{did_you_mean(path.name, entries)}; {path.parent} has {names or 'no files'}"
    )


class Unpacked(gzip.GzipFile):
    """The content of a gzip file. Raises DataError where it grows beyond what text does: memory or the disk
    would end first."""

    def read(self, size: int | None = -1) -> bytes:
        block, packed = super().read(size), os.fstat(self.fileno()).st_size
        if self.tell() > (most := max(SMALL, LARGEST_RATIO * packed)):
            raise DataError(
                f"{self.name} has {packed:,} bytes and unpacks to more than {most:,}; expected text, "
                "which grows tenfold at most; if this is right, unpack it (gunzip --keep) and give the plain "
                "file"
            )
        return block


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A text file, plain or gzip, open for its bytes. Raises DataError if it is missing, unreadable or
    damaged."""
    try:
        with path.open("rb") as file:
            packed = file.peek(2).startswith(b"\x1f\x8b")
            yield io.BufferedReader(Unpacked(fileobj=file), 2**20) if packed else file
    except (FileNotFoundError, NotADirectoryError):
        raise no_file(path) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); copy or download it again") from error
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; expected a text file, plain or .gz"
        ) from error
