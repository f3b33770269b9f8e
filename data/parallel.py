"""Parallel text: two files, line n of one translates line n of the other.

A line ends at "\\n" and nowhere else: str.splitlines also cuts at characters that occur inside sentences (U+2028, U+0085, form feed), after
which every later line is paired with the wrong translation."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.did_you_mean import did_you_mean

SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev"), "test": ("test",)}  # names a folder may use, the first one found wins


class DataError(ValueError):
    """Something is wrong with the user's text; the message says what was expected, what came, and what to do."""


@dataclass
class ParallelText:
    """sources[i] and targets[i] are one pair. skipped says how many pairs of the files are not here, by reason."""

    sources: list[str]
    targets: list[str]
    skipped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass
class Corpus:
    """extra holds further test sets, whole, by name."""

    train: ParallelText
    valid: ParallelText
    test: ParallelText
    name: str
    description: str
    src: str = ""
    tgt: str = ""
    extra: dict[str, ParallelText] = field(default_factory=dict)

    def split(self, name: str) -> ParallelText:
        """The split called train, valid, test, or by one of the extra test sets' names; DataError for any other name."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra}
        if name not in splits:
            raise DataError(f"{self.name} has no split {name!r}{did_you_mean(name, list(splits))}; it has {', '.join(splits)}")
        return splits[name]

    def digest(self) -> str:
        """Which text a model was trained on: `digest_lines` of the training and validation text."""
        return digest_lines(self.train.sources, self.train.targets, self.valid.sources, self.valid.targets)


def digest_lines(*texts: Sequence[str]) -> str:
    """12 hexadecimal digits of the SHA-256 of texts, each a list of lines."""
    sha = hashlib.sha256()
    for lines in texts:
        sha.update("\n".join(lines).encode())
        sha.update(b"\0")
    return sha.hexdigest()[:12]


def read_lines(path: str | Path) -> list[str]:
    """The lines of a plain or gzip text file, white space at both ends removed, empty ones included, a byte-order mark dropped.

    gzip is known by its first two bytes, whatever the file is called. DataError for a missing or unreadable file, and for a line that is
    not UTF-8."""
    path = Path(path)
    raw = _read_bytes(path)
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    lines = raw.split(b"\n")
    if lines[-1] == b"":
        lines.pop()  # what stands after the last line end is no line
    try:
        return [line.decode("utf-8").strip() for line in lines]
    except UnicodeDecodeError:
        number, error = _first_bad_line(lines)
        byte = error.object[error.start]
        raise DataError(
            f"{path}, line {number}: byte {error.start + 1} (0x{byte:02x}) is not UTF-8; correct that line, or convert the file if it "
            f"is in another encoding: iconv -f ISO-8859-1 -t UTF-8"
        ) from None


def read_pairs(source: str | Path, target: str | Path, *, skip_empty: bool) -> ParallelText:
    """The pairs of two aligned files. With skip_empty a pair with an empty side is left out and counted under 'empty'; a test set is read
    without it, so that it keeps its line numbers. DataError where the files have different numbers of lines, or none."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,}: aligned files have the same number; "
            f"check that both are whole and that line {min(len(sources), len(targets)):,} of one translates that of the other"
        )
    if not skip_empty:
        text = ParallelText(sources, targets)
    else:
        kept = [(s, t) for s, t in zip(sources, targets, strict=True) if s and t]
        dropped = len(sources) - len(kept)
        text = ParallelText([s for s, _ in kept], [t for _, t in kept], {"empty": dropped} if dropped else {})
    if not len(text):
        raise DataError(f"{source} and {target} have no pair of lines with text on both sides; expected one sentence a line")
    return text


def read_files(
    *,
    train_files: Sequence[str] | None,
    valid_files: Sequence[str] | None,
    test_files: Sequence[str] | None,
    src: str | None,
    tgt: str | None,
) -> Corpus:
    """A corpus of six named files, each argument [SOURCE, TARGET]. DataError says which are missing."""
    given = {"--train-files": train_files, "--valid-files": valid_files, "--test-files": test_files}
    missing = [flag for flag, files in given.items() if not files]
    if missing:
        raise DataError(f"explicit files need all of {', '.join(given)}, each SOURCE and TARGET; missing: {', '.join(missing)}")

    def pairs(flag: str, *, skip_empty: bool) -> ParallelText:
        files = given[flag]
        if files is None or isinstance(files, str) or len(files) != 2:
            raise DataError(f"{flag} takes two files, SOURCE and TARGET; got {files!r}")
        return read_pairs(files[0], files[1], skip_empty=skip_empty)

    return Corpus(
        train=pairs("--train-files", skip_empty=True),
        valid=pairs("--valid-files", skip_empty=True),
        test=pairs("--test-files", skip_empty=False),
        name="files",
        description=f"training text {' and '.join(map(str, train_files or ()))}",
        src=src or "",
        tgt=tgt or "",
    )


def read_folder(folder: str | Path, *, src: str | None, tgt: str | None) -> Corpus:
    """The corpus in a folder of {train,valid,test}.{src,tgt}, plain or .gz; validation may also be called val or dev.

    DataError where a language or a split is not there, with the ones that are."""
    folder = Path(folder)
    found = _files_by_split(folder)
    languages = sorted(set().union(*(by_language.keys() for by_language in found.values())))
    if not languages:
        raise DataError(f"{folder} has no parallel text: expected files such as train.en and train.de, valid.*, test.*, plain or .gz")
    if src is None or tgt is None:
        raise DataError(f"say which language to translate from and to: --src and --tgt; {folder} has {', '.join(languages)}")
    if src == tgt:
        raise DataError(f"--src and --tgt are both {src!r}; {folder} has {', '.join(languages)}")
    for language in (src, tgt):
        if language not in languages:
            hint = did_you_mean(language, languages)
            raise DataError(f"{folder} has no file for language {language!r}{hint}; it has {', '.join(languages)}")
    texts = {}
    for split, names in SPLIT_NAMES.items():
        name = next((n for n in names if {src, tgt} <= found.get(n, {}).keys()), None)
        if name is None:
            there = sorted(path.name for n in names for path in found.get(n, {}).values())
            expected = " or ".join(f"{n}.{src} and {n}.{tgt}" for n in names)
            raise DataError(
                f"{folder} has no {split} text for {src}-{tgt}: expected {expected}, plain or .gz; found {', '.join(there) or 'none'}"
            )
        texts[split] = read_pairs(found[name][src], found[name][tgt], skip_empty=split != "test")
    return Corpus(
        train=texts["train"],
        valid=texts["valid"],
        test=texts["test"],
        name=folder.resolve().name,
        description=f"parallel text in {folder}, {src} to {tgt}",
        src=src,
        tgt=tgt,
    )


def _files_by_split(folder: Path) -> Mapping[str, Mapping[str, Path]]:
    """split name -> language -> file. What follows the first dot is the language; a plain file goes before its .gz."""
    names = {name for names in SPLIT_NAMES.values() for name in names}
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):  # 'train.en' sorts before 'train.en.gz'
        split, _, language = path.name.removesuffix(".gz").partition(".")
        if split in names and language and path.is_file():
            found.setdefault(split, {}).setdefault(language, path)
    return found


def _read_bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not path.parent.is_dir():
            raise DataError(f"no file {path}: there is no folder {path.parent}") from None
        there = sorted(entry.name for entry in path.parent.iterdir())
        names = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "")
        raise DataError(f"no file {path}{did_you_mean(path.name, there)}; {path.parent} has {names or 'no files'}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; expected a text file, plain or .gz") from error
    if raw.startswith(b"\x1f\x8b"):
        try:
            return gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path} is a damaged gzip file ({error}); copy or download it again") from error
    return raw


def _first_bad_line(lines: Sequence[bytes]) -> tuple[int, UnicodeDecodeError]:
    for number, line in enumerate(lines, start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            return number, error
    raise AssertionError("called only where a line is not UTF-8")
