"""`--data hf:NAME`: parallel text as Hugging Face's data sets hold it. NAME is a folder with files of rows
(data/rows.py), or a data set for the package `datasets`, on its hub or in its cache. NAME:CONFIG takes one of
its configurations: a folder inside the folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headgates.data.hub import HUB, hub_name, load_hub
from headgates.data.parallel import SPLIT_NAMES, corpus_of, named_split, split_parts, two_languages
from headgates.data.splits import Corpus


def read_hub(place: str, *, src: str | None, tgt: str | None) -> Corpus:
    """The corpus of hf:PLACE or hf:PLACE:CONFIG. Raises DataError where a split or a language is missing, the
    files are broken, or the package `datasets` is needed and not installed."""
    src, tgt = two_languages(src, tgt, (), HUB + place)
    name, _, config = place.partition(":")
    parts: Mapping[str, Sequence[Path]]
    if Path(name).is_dir():
        parts = split_parts(Path(name) / config)
    else:  # in the cache of the package `datasets`, which downloads it first where it is not there
        splits = load_hub(name, config).items()
        parts = {split: [Path(file["filename"]) for file in rows.cache_files] for split, rows in splits}
    files = {split: named_split(parts, split, HUB + place) for split in SPLIT_NAMES}
    return corpus_of(files, src, tgt, name=hub_name(place), about=f"{HUB}{place}, {src} to {tgt}")
