"""Corpora by name, by folder or by file. Importing this room imports neither torch nor Lightning, so that
every --help answers at once; batches are in data.batching and data.corpus, vocabularies in data.vocab."""

from pathlib import Path

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.registry import imported
from headgates.data.parallel import folder_files, read_folder
from headgates.data.splits import Corpus
from headgates.data.text import DataError

__all__ = ["CORPORA", "Corpus", "DataError", "load_corpus"]

# name -> "module:loader(src=, tgt=, data_dir=, seed=) -> Corpus", imported when it is used. src and tgt may
# be None for the corpus' own default; a loader ignores what it has no use for.
CORPORA = {
    "toy": "headgates.data.toy:toy_corpus",
    "toy-multi": "headgates.data.toy.multi:toy_multi_corpus",
    "multi30k": "headgates.data.named:multi30k",
}
# prefix -> "module:loader(place, src=, tgt=) -> Corpus" of other programs' files: --data PREFIX:PLACE
CORPUS_FILES = {
    "fairseq": "headgates.data.fairseq_data:read_binarised",
    "fairseq-pieces": "headgates.data.fairseq_data:read_pieces",
    "hf": "headgates.data.hub_pairs:read_hub",
}


def load_corpus(
    data: str | Path | None,
    *,
    data_dir: str | Path | None = None,
    src: str | None = None,
    tgt: str | None = None,
    seed: int = 0,
) -> Corpus:
    """Return the corpus that --data names.

    A name in CORPORA comes first (write ./toy for a folder called toy), or PREFIX:PLACE with a prefix in
    CORPUS_FILES; then a folder, as given or inside data_dir. seed: of corpora that are generated; it does not
    follow the training seed, so that the text stays the same. Raises DataError at an unknown name."""
    if data is None:
        raise DataError(f"no text: give --data with a folder or one of {', '.join(CORPORA)}")
    if str(data) in CORPORA:
        return imported(CORPORA[str(data)])(src=src, tgt=tgt, data_dir=data_dir, seed=seed)
    prefix, colon, place = str(data).partition(":")
    if colon and prefix in CORPUS_FILES:
        return imported(CORPUS_FILES[prefix])(place, src=src, tgt=tgt)
    return read_folder(corpus_folder(data, data_dir), src=src, tgt=tgt)


def check_text(data: str | Path, *, data_dir: str | Path | None, src: str | None, tgt: str | None) -> None:
    """Raises DataError where --data is neither a name in CORPORA nor a folder with the files of this pair of
    languages. Reads none."""
    if str(data) not in CORPORA and str(data).partition(":")[0] not in CORPUS_FILES:
        folder_files(corpus_folder(data, data_dir), src=src, tgt=tgt)


def corpus_folder(data: str | Path, data_dir: str | Path | None) -> Path:
    """The folder of a corpus, as given or inside data_dir. Raises DataError if there is none."""
    folders = [Path(data)] + ([Path(data_dir) / data] if data_dir is not None else [])
    for folder in folders:
        if folder.is_dir():
            return folder
    if file := next((folder for folder in folders if folder.is_file()), None):
        raise DataError(f"{file} is a file; give --data a folder that has train, valid and test in it")
    where = " or ".join(map(str, folders))
    raise DataError(
        f"no corpus named {str(data)!r}{did_you_mean(str(data), list(CORPORA))} and no folder {where}; "
        f"the named corpora are {', '.join(CORPORA)}"
    )
