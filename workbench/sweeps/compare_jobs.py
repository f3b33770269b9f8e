"""Make the runs of a comparison's points, several at once, as a sweep does its trials; what is finished is
found by its hash and stays.

Points without training are made in this process. The state in RUNS/compare-NAME tells what each point came
to: trials.json and logs/. It is made anew by every command: the runs themselves say what is finished, so
nothing is remembered wrongly, and what failed is tried again.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgates.workbench.comparison import PROTOCOL, Comparison, PlannedPoint, tell_plan
from headgates.workbench.folder import RunFolder, find_runs
from headgates.workbench.sweeps.jobs import FinishedTrial, Trial, run_trials
from headgates.workbench.sweeps.live import Show
from headgates.workbench.sweeps.state import Record, SweepState

SHOWN = ("method", "heads", "epochs", "seed")  # of a point, in the table of all


class FinishedRuns:
    """The finished runs below a folder by their hashes. Each config.yaml is read once, and again when it has
    changed."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self.seen: dict[Path, tuple[int, str | None]] = {}

    def find(self, wanted: str) -> RunFolder | None:
        """The finished run of this hash, or None. One with a broken result.json does not count: fit.py
        reports it."""
        for folder in find_runs(self.root):
            changed = (folder / "config.yaml").stat().st_mtime_ns
            if self.seen.get(folder.path, (0, None))[0] != changed:
                self.seen[folder.path] = (changed, folder.run_hash())
            with suppress(ValueError):
                if self.seen[folder.path][1] == wanted and folder.finished():
                    return folder
        return None


def make_points(
    comparison: Comparison, folder: RunFolder, *, script: Path, threads: int, jobs: int
) -> SweepState:
    """Make the runs that are not finished, and return the state: for each point its run, or why it failed.

    script: fit.py; threads: CPU threads of each job."""
    found = FinishedRuns(comparison.config.runs)
    state = SweepState(
        folder.path,
        comparison.config.seed,
        [Record(i, parameters(each)) for i, each in enumerate(comparison.plan, start=1)],
    )
    (folder.path / "logs").mkdir(parents=True, exist_ok=True)
    folder.write_text(PROTOCOL, comparison.protocol)
    waiting = [each for each in comparison.plan if found.find(each.run_hash) is None]
    tell_plan(comparison, len(waiting))
    comparison.keep_scores(waiting)
    comparison.keep_translations(waiting)
    metric = comparison.text.task.metrics[0]
    trials = [
        trial(i, each, comparison, folder, script, threads) for i, each in enumerate(comparison.plan, start=1)
    ]
    show = Show(state, SHOWN, metric=(metric.name, metric.title))
    make_untrained(comparison, state, found, show)
    with show:
        run_trials(
            state,
            [each for each in trials if state.records[each.number].status == "waiting"],
            jobs=jobs,
            environment={"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
            find_finished=lambda each: finished_point(found, comparison.plan[each.number - 1], metric.name),
            base_is_made=lambda base: base == comparison.base_hash or found.find(base) is not None,
            show=show,
        )
    show.summary()
    return state


def make_untrained(comparison: Comparison, state: SweepState, found: FinishedRuns, show: Show) -> None:
    """Make the points without training one after the other in this process, and count as done what is
    finished already."""
    metric = comparison.text.task.metrics[0].name
    for record, planned in zip(state.records.values(), comparison.plan, strict=True):
        finished, begin = finished_point(found, planned, metric), time.monotonic()
        if finished is None and planned.point.epochs:
            continue
        if finished is None:
            record.status = "running"
            state.save()
            try:
                comparison.make_here(planned)
                finished = finished_point(found, planned, metric)
            except (ValueError, OSError) as error:  # of one point: the others can be made
                record.error = " ".join(str(error).split())
            record.seconds = time.monotonic() - begin
        record.status = "failed" if finished is None else "done"
        if finished is not None:
            record.run, record.result = finished.run, finished.result
        state.save()
        show.ended(record)


def parameters(planned: PlannedPoint) -> dict[str, Any]:
    """What the table of all points says of one."""
    point = planned.point
    method = point.method if point.learned else point.system.removesuffix("-finetuned")
    heads = point.heads if point.heads is not None else f"λ {point.lam:g}"
    return {"method": method, "heads": heads, "epochs": point.epochs, "seed": point.seed}


def trial(
    number: int, planned: PlannedPoint, comparison: Comparison, folder: RunFolder, script: Path, threads: int
) -> Trial:
    """The command of a point. Points on one continued base wait for each other until it is made."""
    config = comparison.config
    words = [sys.executable, str(script), "--config", str(folder / PROTOCOL), *planned.point.words]
    words += [
        "--resume",
        "--unique",
        "--logger",
        config.logger,
        "--runs",
        config.runs,
        "--threads",
        str(threads),
    ]
    words += ["--data-dir", config.data_dir] if config.data_dir else []
    return Trial(number, words, planned.continued_hash or comparison.base_hash)


def finished_point(found: FinishedRuns, planned: PlannedPoint, metric: str) -> FinishedTrial | None:
    """The run of a point and the part of its row that the table shows; None where it is not finished."""
    run = found.find(planned.run_hash)
    if run is None:
        return None
    row = next(row for row in run.rows() if row.system == planned.point.system)
    shown: dict[str, Any] = {
        "system": row.system,
        "heads_open": row.heads_open,
        "heads_total": row.heads_total,
    }
    return FinishedTrial(
        run.path.name,
        shown | {metric: row.main.value, f"{metric}_ci95": list(row.main.ci95 or (row.main.value,) * 2)},
    )
