"""`--data hf:NAME`: parallel text as Hugging Face's data sets hold it.

NAME is a folder with the parts of each split as .parquet, .arrow, .jsonl or .jsonl.gz (train.parquet,
train-00000-of-00002.parquet, train/data-00000-of-00001.arrow), or a data set for the package `datasets`, on
its hub or in its cache. NAME:CONFIG takes one of its configurations: a folder inside the folder. A row has
both languages:

    {"translation": {"en": "The dog sleeps.", "de": "Der Hund schläft."}}        or two columns, en and de"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headgates.configs.fields import shortened
from headgates.configs.own_file import check_unpacked
from headgates.data.hub import HUB, hub_name, load_hub
from headgates.data.parallel import SPLIT_NAMES, gathered_pairs, named_split
from headgates.data.splits import Corpus
from headgates.data.text import DataError, reworded
from headgates.data.text_file import json_lines

HUB_ENDINGS = (".parquet", ".arrow", ".jsonl", ".jsonl.gz")
MOST_ROWS = 2**20  # that any file may have; more need a byte each
COLUMN = "translation"  # of which each language is a field


def read_hub(place: str, *, src: str | None, tgt: str | None) -> Corpus:
    """The corpus of hf:PLACE or hf:PLACE:CONFIG. Raises DataError where a split or a language is missing, the
    files are broken, or the package `datasets` is needed and not installed."""
    if src is None or tgt is None or src == tgt:
        raise DataError(f"say which language to translate from and to: --src and --tgt; got {src} and {tgt}")
    name, _, config = place.partition(":")
    if Path(name).is_dir():
        parts = folder_parts(Path(name) / config)
    else:  # in the cache of the package `datasets`, which downloads it first where it is not there
        splits = load_hub(name, config).items()
        parts = {split: [Path(file["filename"]) for file in rows.cache_files] for split, rows in splits}
    texts = []
    for split in SPLIT_NAMES:
        own = named_split(parts, split, HUB + place)
        rows = partial(pairs_of_parts, own, src, tgt)
        texts.append(gathered_pairs(own, rows, skip_empty=split != "test", key=(src, tgt)))
        if not len(texts[-1]):
            raise DataError(f"{HUB}{place}: the split {split} has no pair with text on both sides")
    about = f"{HUB}{place}, {src} to {tgt}"
    train, valid, test = texts
    return Corpus(train, valid, test, hub_name(place), about, src, tgt)


def folder_parts(folder: Path) -> dict[str, list[Path]]:
    """Split -> its files, in order, of a folder; a split's name is what stands before the first dot or dash,
    or a folder's name."""
    found: dict[str, list[Path]] = {}
    for path in sorted(
        path for path in folder.rglob("*") if path.name.endswith(HUB_ENDINGS) and path.is_file()
    ):
        inside = path.relative_to(folder).parts
        names = {name for names in SPLIT_NAMES.values() for name in names}
        words = [name.split(".")[0].split("-")[0] for name in (inside[-1], *inside[-2:-1])]
        if split := next((word for word in words if word in names), None):
            found.setdefault(split, []).append(path)
    return found


def pairs_of_parts(parts: Sequence[Path], src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of some files, without white space at their ends. Raises DataError, naming file and row, at
    one that lacks a language."""
    for path in parts:
        for number, row in file_rows(path):
            languages = row.get(COLUMN, row)
            sides = [isinstance(languages, dict) and languages.get(language) for language in (src, tgt)]
            if not all(isinstance(side, str) for side in sides):
                raise DataError(
                    f"{path}, row {number}: expected a column {COLUMN} with {src} and {tgt}, or a column of "
                    f"text for each; got {shortened(row)}"
                )
            source, target = (" ".join(str(side).splitlines()).strip() for side in sides)
            yield source, target


def file_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of the rows of one file, an .arrow file being a stream as the package `datasets` writes
    it. Raises DataError where it is broken."""
    if ".jsonl" in path.name:
        yield from json_lines(path)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    errors = OSError, ValueError, pa.ArrowException, OverflowError, MemoryError
    with reworded(f"{path} cannot be read", "copy or download it again", *errors):
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            check_parquet(path, file.metadata)
            batches = file.iter_batches(2**14)
        else:
            batches = pa.ipc.open_stream(pa.memory_map(str(path)))
        number = 0
        for batch in batches:
            batch.validate(full=True)  # offsets and sizes: what follows trusts them
            for row in batch.to_pylist():
                number += 1
                yield number, row


def check_parquet(path: Path, about: Any) -> None:
    """Raises ValueError where a .parquet file says to hold more bytes or rows than it can."""
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    there = path.stat().st_size
    check_unpacked(path, sum(max(size, 0) for size in sizes), there)
    if about.num_rows > max(MOST_ROWS, there):
        raise ValueError(f"it says {about.num_rows:,} rows in {there:,} bytes")
