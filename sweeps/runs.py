"""Which runs belong to a sweep: the one that a configuration makes, known by its hash before it starts; and the siblings of all.

The hashes are those that fit.py itself finds finished runs by, so nothing that it prints has to be understood.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.cli import config_hash
from configs.schema import FitConfig
from lightning_modules.stage import resolve_precision
from protocol.experiment_text import ExperimentText
from runfolder.fingerprint import base_fingerprint, stage_fingerprint
from runfolder.folder import RunFolder, dense_run, find_runs
from runfolder.related import siblings

OF_THE_TEXT = ("data", "data_dir", "src", "tgt", "train_files", "valid_files", "test_files", "test_sentences")


@dataclass(frozen=True)
class Planned:
    """The run_hash of a configuration's run, and that of the base it needs."""

    run: str
    base: str


def planned(configs: Sequence[FitConfig]) -> list[Planned]:
    """For every configuration, in order. Loads each text once. Raises ValueError as fit.py does where text or a named base is missing."""
    texts: dict[str, ExperimentText] = {}
    found = []
    for config in configs:
        key = repr([getattr(config, name) for name in OF_THE_TEXT])
        if key not in texts:
            texts[key] = ExperimentText(config)
        found.append(_planned(config, texts[key]))
    return found


def _planned(config: FitConfig, material: ExperimentText) -> Planned:
    precision = resolve_precision(config.precision)
    if config.base is not None:
        base = str(RunFolder.open(config.base).run_hash())
    else:
        base = config_hash(base_fingerprint(config, material.corpus, precision))
    if config.gate == "none":
        return Planned(base, base)
    identity = stage_fingerprint(config, material.corpus, precision, base_hash=base, gate=config.gate, test=material.test)
    return Planned(config_hash(identity), base)


def finished_run(root: str | Path, wanted: str) -> RunFolder | None:
    """The finished run of this hash, if there is one. A run with a broken result.json is none: fit.py says what is wrong with it."""
    for folder in find_runs(root):
        with suppress(ValueError):
            if folder.run_hash() == wanted and folder.finished():
                return folder
    return None


def numbers(folder: RunFolder) -> dict[str, Any]:
    """What a sweep shows of a finished run: of its own system, that is base or l0."""
    result = folder.read_json("result.json")
    (row,) = [row for row in result["rows"] if row["system"] == result["system"]]
    return {name: row[name] for name in ("system", "heads_open", "heads_total", "heads_by_kind", "bleu", "bleu_ci95", "chrf")}


def with_siblings(folders: Sequence[RunFolder], report: Callable[[str], None]) -> list[RunFolder]:
    """The runs and, after them, all other finished runs with gates on their bases."""
    found = {folder.path.resolve(): folder for folder in folders}
    bases = {(base := dense_run(folder)).path.resolve(): base for folder in folders}
    for base in bases.values():
        for folder in siblings(base, besides=[RunFolder(path) for path in found], report=report):
            found.setdefault(folder.path.resolve(), folder)
    return list(found.values())
