"""Runs that belong together: those with gates on one base, each with the heads that it left open."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headgates.configs.methods import GateMethod, method_of
from headgates.gates import KINDS, HeadMap
from headgates.models.progress import Report
from headgates.records.fingerprint import PLANNED
from headgates.records.folder import RunFolder, find_runs
from headgates.records.row import ResultRow


@dataclass(frozen=True)
class GateRun:
    """A finished run with gates: its own system's row of result.json, and which heads are open (of the sites
    it gates)."""

    folder: RunFolder
    config: dict[str, Any]
    method: GateMethod
    row: ResultRow
    open: HeadMap

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def label(self) -> str:
        """As figures call it: what it was controlled by."""
        return self.method.control_label(self.config)


def open_gate_run(folder: RunFolder) -> GateRun:
    """Raises ValueError if the run has no gates, is not finished, or lacks the row or the gates of its own
    system."""
    folder.check_finished()
    config = folder.config()
    method = method_of(config)
    if method is None:
        raise ValueError(f"{folder.path} is a base, a run without gates; give a run of fit.py with --gate")
    system = folder.own_system()
    row, xi = folder.row_of(system), folder.systems().get(system, {}).get("xi")
    if xi is None:
        raise folder.foreign("systems.json", f"it has no gates of {system}")
    return GateRun(folder, config, method, row, HeadMap.from_json(xi).select(KINDS).map(lambda row: row > 0))


def siblings(base: RunFolder, *, besides: Sequence[RunFolder] = (), report: Report) -> list[RunFolder]:
    """The finished runs with gates beside the base and on it, without `besides`; of others on it is said why
    they are left out."""
    runs = []
    left_out = {folder.path.resolve() for folder in besides}
    base_hash = base.config().get("run_hash")
    for folder in find_runs(base.path.resolve().parent):
        try:
            config = folder.config()
            if folder.path in left_out or base_hash is None or config.get("base_hash") != base_hash:
                continue
            if method_of(config) is None or is_curve(config) or not {*KINDS} & {*config["kinds"]}:
                continue  # gates on neurons alone say nothing of heads
            open_gate_run(folder)
        except ValueError as error:
            report(f"left out: {error}")
            continue
        runs.append(folder)
    return runs


def planned_runs(base: RunFolder, runs: Sequence[RunFolder] = ()) -> list[RunFolder]:
    """The finished runs of `fit.py --speedup` on the base that lie beside it or beside one of these runs."""
    base_hash = base.config().get("run_hash")
    found = []
    places = dict.fromkeys(folder.path.resolve().parent for folder in (base, *runs))
    for folder in (each for place in places for each in find_runs(place)):
        with suppress(ValueError):  # what is no run, or broken, is said of where it is opened
            config = folder.config()
            if config.get("gate") == PLANNED and config.get("base_hash") == base_hash and folder.finished():
                found.append(folder)
    return found


def is_curve(config: dict[str, Any]) -> bool:
    """Whether a run went through many numbers of heads, each a smaller model, so that it has no gates of its
    own to read."""
    return bool(config.get("curve")) or config.get("max_drop") is not None
