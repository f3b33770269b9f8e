"""Parallel text: two files, line n of one translates line n of the other, or files of rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from headgates.data.rows import ROW_ENDINGS, pairs_of_rows, row_ending
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText, without_empty
from headgates.data.text_file import lines_of, unpacked_name

T = TypeVar("T")
# names that a folder may use; the first one found wins
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "dev", "validation"), "test": ("test",)}
ALL_NAMES = {name for names in SPLIT_NAMES.values() for name in names}
IN_MEMORY = 2**24  # bytes of two aligned files; larger text lies in a store (data/store.py)


def read_pairs(source: str | Path, target: str | Path, *, skip_empty: bool) -> ParallelText:
    """Return the sentence pairs of two aligned files.

    skip_empty: leave out pairs with an empty side and count them under 'empty'; test sets are read without
    it, to keep their line numbers. Raises DataError if the files have different numbers of lines, or no
    text."""
    return gathered_pairs((source, target), partial(pairs_of, source, target), skip_empty=skip_empty)


def read_split(files: Sequence[Path], src: str, tgt: str, *, skip_empty: bool) -> ParallelText:
    """`read_pairs` of what `folder_files` has of a split: two aligned files, or files of rows. Units of a TMX
    that lack a language are always left out."""
    if ending := row_ending(files[0]):
        rows = partial(pairs_of_rows, files, src, tgt)
        return gathered_pairs(files, rows, skip_empty=skip_empty or ending == ".tmx", key=(src, tgt))
    return read_pairs(*files, skip_empty=skip_empty)


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
    function's. key: what else the pairs depend on. Raises DataError where there is no text."""
    # who reads says what is missing
    if sum(Path(file).stat().st_size for file in files if Path(file).is_file()) > IN_MEMORY:
        # here, because pyarrow takes time to load and --help does not need it
        from headgates.data.store import stored_text

        text = stored_text(files, pairs, skip_empty=skip_empty, key=key)
    else:
        skipped: dict[str, int] = {}
        kept = list(without_empty(pairs(), skipped) if skip_empty else pairs())
        text = ParallelText([source for source, _ in kept], [target for _, target in kept], skipped)
    if not len(text):
        raise DataError(
            f"{' and '.join(map(str, files[:2]))}: no pair has text on both sides; expected a sentence a line"
            f"{', in ' * bool(key)}{' and '.join(key)}"
        )
    return text


def read_folder(folder: str | Path, *, src: str | None, tgt: str | None) -> Corpus:
    """Return the corpus of a folder. Raises DataError as `folder_files` does, and where a file cannot be
    read."""
    files = folder_files(Path(folder), src=src, tgt=tgt)
    about = f"parallel text in {folder}, {src} to {tgt}"
    return corpus_of(files, str(src), str(tgt), name=Path(folder).resolve().name, about=about)


def corpus_of(files: Mapping[str, Sequence[Path]], src: str, tgt: str, *, name: str, about: str) -> Corpus:
    """The corpus of each split's files."""
    train, valid, test = (
        read_split(files[split], src, tgt, skip_empty=split != "test") for split in SPLIT_NAMES
    )
    return Corpus(train, valid, test, name, about, src, tgt)


def folder_files(folder: Path, *, src: str | None, tgt: str | None) -> dict[str, Sequence[Path]]:
    """Return the files of every split of a folder: the source and the target file, such as train.en and
    train.de, or else the files of `split_parts`. The validation files may also be called val, dev or
    validation; text may be plain, .gz or .zst.

    Raises DataError, which lists what the folder has, if a language or a split is missing."""
    found: dict[str, dict[str, Path]] = {}  # split's name -> language -> file
    for path in sorted(folder.iterdir()):  # 'train.en' sorts before 'train.en.gz' and is taken
        name, _, language = unpacked_name(path).partition(".")
        if name in ALL_NAMES and language and not row_ending(path) and path.is_file():
            found.setdefault(name, {}).setdefault(language, path)
    languages = sorted(set().union(*found.values()))
    parts = {} if languages else split_parts(folder)
    if not (languages or parts):
        raise DataError(
            f"{folder} has no parallel text: expected files such as train.en and train.de, valid.*, test.*, "
            f"or train, valid and test as {', '.join(ROW_ENDINGS)}"
        )
    source, target = two_languages(src, tgt, languages, str(folder))
    both = {name: (of[source], of[target]) for name, of in found.items() if {source, target} <= of.keys()}
    place = f"{folder}, {source}-{target},"
    return {split: named_split(both or parts, split, place) for split in SPLIT_NAMES}


def split_parts(folder: Path, endings: Sequence[str] = ROW_ENDINGS) -> Mapping[str, Sequence[Path]]:
    """Split's name -> its files of rows. A file of the folder itself that has the name alone, as train.tsv,
    is the whole split. Else the split is the files of the folder and those inside, in order and of one
    ending, that have the name before their first dot or dash, as in train-00000-of-00002.parquet, or whose
    folder has it."""
    whole: dict[str, list[Path]] = {}
    parts: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        words = [name.split(".")[0].split("-")[0] for name in path.relative_to(folder).parts[:-3:-1]]
        split = next((word for word in words if word in ALL_NAMES), None)
        if not split or row_ending(path) not in endings or not path.is_file():
            continue
        if path.parent == folder and unpacked_name(path) == split + row_ending(path):
            whole.setdefault(split, [path])
        of_split = parts.setdefault(split, [])
        if not of_split or same_form(path, of_split[0]):
            of_split.append(path)
    # val.tsv also goes before valid-old.tsv: both are names of one split
    named = {name for names in SPLIT_NAMES.values() if whole.keys() & set(names) for name in names}
    return {name: files for name, files in parts.items() if name not in named} | whole


def same_form(path: Path, other: Path) -> bool:
    """Whether two files of rows have one ending, and both or neither are compressed."""
    return (row_ending(path), path.suffix) == (row_ending(other), other.suffix)


def two_languages(src: str | None, tgt: str | None, known: Sequence[str], place: str) -> tuple[str, str]:
    """The languages that --src and --tgt name. Raises DataError unless these are two of those known, if any
    are."""
    if src is None or tgt is None or src == tgt or (known and not {src, tgt} <= set(known)):
        there = f", of those in {place}: {', '.join(known)}" if known else f" of {place}"
        raise DataError(f"expected two languages for --src and --tgt{there}; got {src} and {tgt}")
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
