"""The text that a run was trained on, found again: scores, curves and reports of a run belong to its own text."""

from typing import Any

from data import Corpus, load_corpus
from models.run import RunFolder


def run_corpus(folder: RunFolder, data_dir: str | None = None) -> Corpus:
    """The corpus of a run. data_dir: folder with local copies of named corpora, the run's own unless given.

    Raises ValueError if it is not there, or is not the text that the run was trained on."""
    settings = folder.config()
    files: dict[str, Any] = {name: settings.get(name) for name in ("src", "tgt", "train_files", "valid_files", "test_files")}
    corpus = load_corpus(settings.get("data"), data_dir=data_dir if data_dir is not None else settings.get("data_dir"), **files)
    digest = (folder.result() or {}).get("data", {}).get("text_digest")
    if digest not in (None, corpus.digest()):  # runs from before it was recorded are taken at their word
        raise ValueError(
            f"the text of {settings.get('data')} is not what {folder.path} was trained on (digest {corpus.digest()}, then {digest}); "
            "numbers on it would belong to no run: bring the old text back, or train on the new one"
        )
    return corpus
