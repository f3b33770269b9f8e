"""Parallel text: two files, line n of one translates line n of the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText, without_empty
from headgates.data.text_file import lines_of

T = TypeVar("T")
# names that a folder may use; the first one found wins
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev", "validation"), "test": ("test",)}
IN_MEMORY = 2**24  # bytes of two aligned files; larger text lies in a store (data/store.py)


def read_pairs(source: str | Path, target: str | Path, *, skip_empty: bool) -> ParallelText:
    """Return the sentence pairs of two aligned files.

    skip_empty: leave out pairs with an empty side and count them under 'empty'; test sets are read without
    it, to keep their line numbers. Raises DataError if the files have different numbers of lines, or no
    text."""
    text = gathered_pairs((source, target), partial(pairs_of, source, target), skip_empty=skip_empty)
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


def gathered_pairs(
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
