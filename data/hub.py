"""`--data hf:NAME`: parallel text as Hugging Face's data sets hold it.

NAME is a folder with the parts of each split as .parquet, .arrow, .jsonl or .jsonl.gz (train.parquet,
train-00000-of-00002.parquet, train/data-00000-of-00001.arrow), or a data set for the package `datasets`, on
its hub or in its cache. NAME:CONFIG takes one of its configurations: a folder inside the folder. A row has
both languages:

    {"translation": {"en": "The dog sleeps.", "de": "Der Hund schläft."}}        or two columns, en and de"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.data.parallel import SPLIT_NAMES, Corpus, gathered, lines_of
from headgates.data.text import DataError, ParallelText

HUB = "hf:"  # before the name of a data set, and after it maybe :CONFIG
HUB_SPLITS = {
    split: ("validation", *names) if split == "valid" else names for split, names in SPLIT_NAMES.items()
}
ENDINGS = (".parquet", ".arrow", ".jsonl", ".jsonl.gz")
COLUMN = "translation"  # of which each language is a field
AT_ONCE = 2**14  # rows


def read_hub(place: str, *, src: str | None, tgt: str | None) -> Corpus:
    """The corpus of hf:PLACE or hf:PLACE:CONFIG. Raises DataError where a split or a language is missing, the
    files are broken, or the package `datasets` is needed and not installed."""
    if src is None or tgt is None or src == tgt:
        raise DataError(f"say which language to translate from and to: --src and --tgt; got {src} and {tgt}")
    name, _, config = place.partition(":")
    folder = Path(name) / config
    parts = folder_parts(folder) if Path(name).is_dir() else cached_parts(name, config)
    texts: dict[str, ParallelText] = {}
    for split, names in HUB_SPLITS.items():
        own = next((each for each in names if each in parts), None)
        if own is None:
            there = ", ".join(sorted(parts)) or f"no file that ends in {', '.join(ENDINGS)}"
            raise DataError(f"{HUB}{place} has no split {' or '.join(names)}; it has {there}")
        rows = partial(pairs_of_parts, parts[own], src, tgt)
        texts[split] = gathered(parts[own], rows, skip_empty=split != "test", made_of=(src, tgt))
        if not len(texts[split]):
            raise DataError(f"{HUB}{place}: the split {own} has no pair with text on both sides")
    about = f"{HUB}{place}, {src} to {tgt}"
    return Corpus(texts["train"], texts["valid"], texts["test"], hub_name(place), about, src=src, tgt=tgt)


def hub_name(place: str) -> str:
    """What a data set is called in the names of files and runs."""
    return place.rstrip("/").replace("/", "-").replace(":", "-").lstrip("-.")


def folder_parts(folder: Path) -> dict[str, list[Path]]:
    """Split -> its files, in order, of a folder; a split's name is what stands before the first dot or dash,
    or a folder's name."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.name.endswith(ENDINGS) and path.is_file()):
        inside = path.relative_to(folder).parts
        names = {name for names in HUB_SPLITS.values() for name in names}
        words = [name.split(".")[0].split("-")[0] for name in (inside[-1], *inside[-2:-1])]
        split = next((word for word in words if word in names), None)
        if split is not None:
            found.setdefault(split, []).append(path)
    return found


def cached_parts(name: str, config: str) -> dict[str, list[Path]]:
    """Split -> the files of a data set in the cache of the package `datasets`, which downloads it first where
    it is not there."""
    splits = load_hub(name, config)
    return {split: [Path(file["filename"]) for file in rows.cache_files] for split, rows in splits.items()}


def load_hub(name: str, config: str) -> Mapping[str, Any]:
    """Split -> data set. Raises DataError where the package `datasets` is not installed or cannot read it."""
    whole = f"{HUB}{name}{':' * bool(config)}{config}"
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{whole} needs the package datasets: pip install datasets; or give a folder of files"
        ) from None
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(name, config or None)
    except Exception as error:  # of the network, the hub or the files
        raise DataError(f"{whole} cannot be read: {' '.join(str(error).split())[:200]}") from error
    return splits


# ---------------------------------------------------------------- rows


def pairs_of_parts(parts: Sequence[Path], src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of some files, without white space at their ends. Raises DataError, naming file and row, at
    one that lacks a language."""
    for path in parts:
        for number, row in enumerate(rows_of(path), start=1):
            languages = row.get(COLUMN, row) if isinstance(row, dict) else {}
            languages = languages if isinstance(languages, dict) else {}
            sides = [languages.get(language) for language in (src, tgt)]
            if not all(isinstance(side, str) for side in sides):
                lacking = next(
                    language
                    for language, side in zip((src, tgt), sides, strict=True)
                    if not isinstance(side, str)
                )
                known = ", ".join(map(str, languages)) or "none"
                raise DataError(
                    f"{path}, row {number}: no text in language "
                    f"{lacking!r}{did_you_mean(lacking, list(map(str, languages)))}; expected a "
                    f"column {COLUMN} with both, or a column for each; got {known}: {shortened(row)}"
                )
            source, target = (" ".join(str(side).splitlines()).strip() for side in sides)
            yield source, target


def rows_of(path: Path) -> Iterator[Any]:
    """The rows of one file as dicts. Raises DataError where it is broken."""
    try:
        if ".jsonl" in path.name:
            for line in filter(None, lines_of(path)):
                yield json.loads(line)
        else:
            for batch in record_batches(path):
                yield from batch.to_pylist()
    except DataError:
        raise
    except (OSError, ValueError, RecursionError, EOFError, gzip.BadGzipFile) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read ({reason}); copy or download it again") from error


def record_batches(path: Path) -> Iterable[Any]:
    """Of a .parquet or .arrow file (a stream, as the package `datasets` writes it, or a file), some rows at a
    time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(AT_ONCE)
        return
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches: Iterable[Any] = (reader.get_batch(number) for number in range(reader.num_record_batches))
    except pa.ArrowInvalid:
        batches = pa.ipc.open_stream(pa.memory_map(str(path)))
    for batch in batches:
        yield from (batch.slice(start, AT_ONCE) for start in range(0, batch.num_rows, AT_ONCE))
