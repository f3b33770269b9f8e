"""The runs of a sweep: the hash of the run that a configuration makes, which is known before it starts, and
the siblings of runs.

fit.py itself finds finished runs by these hashes, so a sweep need not parse its output.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgates.configs.cli import config_hash
from headgates.configs.schema import FitConfig
from headgates.lightning_modules.precision import resolve_precision
from headgates.models.progress import Report
from headgates.workbench.experiment_text import ExperimentText
from headgates.workbench.fingerprint import base_fingerprint, stage_fingerprint
from headgates.workbench.folder import RunFolder, dense_run, find_runs
from headgates.workbench.related import siblings

TEXT_FIELDS = (
    "data",
    "data_dir",
    "src",
    "tgt",
    "train_files",
    "valid_files",
    "test_files",
    "test_sentences",
)  # decide which text is read


@dataclass(frozen=True)
class PlannedRun:
    """The run_hash of a configuration's run, and that of the base it needs."""

    run_hash: str
    base_hash: str


def planned_runs(configs: Sequence[FitConfig]) -> list[PlannedRun]:
    """Return the planned run of each configuration, in order; each text is loaded once. Raises ValueError as
    fit.py if one is missing."""
    texts: dict[str, ExperimentText] = {}
    planned = []
    for config in configs:
        key = repr([getattr(config, name) for name in TEXT_FIELDS])
        if key not in texts:
            texts[key] = ExperimentText(config)
        planned.append(planned_run(config, texts[key]))
    return planned


def planned_run(config: FitConfig, text: ExperimentText) -> PlannedRun:
    """Return the planned run of a configuration on its text. Raises ValueError if --base names no run."""
    precision = resolve_precision(config.precision)
    named_base = None if config.base is None else str(RunFolder.open(config.base).run_hash())
    base = named_base or config_hash(base_fingerprint(config, text.corpus, precision))
    if config.base_alone:
        return PlannedRun(base, base)
    fingerprint = stage_fingerprint(
        config, text.corpus, precision, base_hash=base, gate=config.gate, test=text.test
    )
    return PlannedRun(config_hash(fingerprint), base)


def finished_run(root: str | Path, wanted_hash: str) -> RunFolder | None:
    """Return the finished run of this hash, or None. A run with a broken result.json does not count: fit.py
    reports it."""
    for folder in find_runs(root):
        with suppress(ValueError):
            if folder.run_hash() == wanted_hash and folder.finished():
                return folder
    return None


def own_row(folder: RunFolder) -> dict[str, Any]:
    """Return the columns that a sweep shows of a finished run's own system, which is the base or the system
    with learned gates."""
    checked = [row.system for row in folder.rows()]
    if checked.count(folder.own_system()) != 1:
        raise folder.foreign(
            "result.json", f"its systems are {checked}, and {folder.own_system()} is its own"
        )
    row = folder.read_json("result.json")["rows"][checked.index(folder.own_system())]
    return {
        name: row.get(name)
        for name in ("system", "heads_open", "heads_total", "heads_by_kind", "bleu", "bleu_ci95", "chrf")
    }


def with_siblings(folders: Sequence[RunFolder], report: Report) -> list[RunFolder]:
    """Return the runs, then all other finished runs with gates on the same bases."""
    by_path = {folder.path.resolve(): folder for folder in folders}
    bases = {(base := dense_run(folder)).path.resolve(): base for folder in folders}
    for base in bases.values():
        for folder in siblings(base, besides=[RunFolder(path) for path in by_path], report=report):
            by_path.setdefault(folder.path.resolve(), folder)
    return list(by_path.values())
