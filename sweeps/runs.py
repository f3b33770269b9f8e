"""Which runs belong to a sweep: the one that a configuration makes, known by its hash before it starts; and the siblings of all.

The hashes are those that fit.py itself finds finished runs by, so nothing that it prints has to be understood.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.study import siblings
from configs.cli import config_hash
from configs.schema import FitConfig
from lightning_modules.stage import resolve_precision
from models.progress import Report
from protocol.material import Material
from runfolder.fingerprint import base_identity, stage_identity
from runfolder.folder import RunFolder, dense_run, find_runs
from runfolder.run_lock import run_hash

TEXT_FIELDS = ("data", "data_dir", "src", "tgt", "train_files", "valid_files", "test_files", "test_sentences")  # decide which text is read


@dataclass(frozen=True)
class PlannedRun:
    """The run_hash of a configuration's run, and that of the base it needs."""

    run_hash: str
    base_hash: str


def planned_runs(configs: Sequence[FitConfig]) -> list[PlannedRun]:
    """For every configuration, in order. Loads each text once. Raises ValueError as fit.py does where text or a named base is missing."""
    materials: dict[str, Material] = {}
    planned = []
    for config in configs:
        text = repr([getattr(config, name) for name in TEXT_FIELDS])
        if text not in materials:
            materials[text] = Material(config)
        planned.append(planned_run(config, materials[text]))
    return planned


def planned_run(config: FitConfig, material: Material) -> PlannedRun:
    precision = resolve_precision(config.precision)
    if config.base is not None:
        base = str(run_hash(RunFolder.open(config.base)))
    else:
        base = config_hash(base_identity(config, material.corpus, precision))
    if config.gate == "none":
        return PlannedRun(base, base)
    identity = stage_identity(config, material.corpus, precision, base_hash=base, gate=config.gate, test=material.test)
    return PlannedRun(config_hash(identity), base)


def finished_run(root: str | Path, wanted_hash: str) -> RunFolder | None:
    """The finished run of this hash, if there is one. A run with a broken result.json is none: fit.py says what is wrong with it."""
    for folder in find_runs(root):
        with suppress(ValueError):
            if run_hash(folder) == wanted_hash and folder.finished():
                return folder
    return None


def own_row(folder: RunFolder) -> dict[str, Any]:
    """What a sweep shows of a finished run: of its own system, that is the base or the one with learned gates."""
    result = folder.read_json("result.json")
    (row,) = [row for row in result["rows"] if row["system"] == result["system"]]
    return {name: row[name] for name in ("system", "heads_open", "heads_total", "heads_by_kind", "bleu", "bleu_ci95", "chrf")}


def with_siblings(folders: Sequence[RunFolder], report: Report) -> list[RunFolder]:
    """The runs and, after them, all other finished runs with gates on their bases."""
    by_path = {folder.path.resolve(): folder for folder in folders}
    bases = {(base := dense_run(folder)).path.resolve(): base for folder in folders}
    for base in bases.values():
        for folder in siblings(base, known=[RunFolder(path) for path in by_path], report=report):
            by_path.setdefault(folder.path.resolve(), folder)
    return list(by_path.values())
