"""Read the finished runs of a comparison as points, write its files, and bring the page of its base up to
date."""

from pathlib import Path
from typing import Any

from headgates.analysis.significance import Scored, resample_counts, score
from headgates.models.progress import say
from headgates.report.compare_files import note_comparison, show_compared, write_compared
from headgates.report.compare_groups import BASES, RESAMPLES, Compared, MadePoint
from headgates.report.fill import update_pages
from headgates.workbench.comparison import Comparison, PlannedPoint
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import ResultRow
from headgates.workbench.sweeps.compare_jobs import parameters
from headgates.workbench.sweeps.state import SweepState, described


class Results:
    """The points of a comparison that are finished, with the bases that their runs name."""

    def __init__(self, comparison: Comparison, state: SweepState):
        self.comparison = comparison
        self.runs: dict[str, dict[str, Any]] = {}  # name -> result.json
        self.points: list[MadePoint] = []
        self.bases: dict[tuple[str, int, int], MadePoint] = {}  # by system, epochs and seed
        self.failed: list[str] = []
        for record, planned in zip(state.records.values(), comparison.plan, strict=True):
            if record.run is None:
                self.failed.append(f"{described(parameters(planned))}: {record.error or record.status}")
            else:
                self.add(planned, RunFolder(Path(comparison.config.runs) / record.run))

    def add(self, planned: PlannedPoint, run: RunFolder) -> None:
        """Add the point of a finished run."""
        point = planned.point
        rows = {row.system: row for row in run.rows()}
        self.runs[run.path.name] = run.read_json("result.json")
        name = run.path.name
        told: dict[str, Any] = {
            "asked": point.heads,
            "lam": point.lam,
            "closing": point.closing,
            "learned": point.learned,
        }
        row = rows[point.system]
        self.points.append(
            MadePoint(point.method, point.epochs, point.seed, name, row, self.scored(run, row), **told)
        )
        for system in BASES:
            of_base = (
                (system, point.epochs, point.seed) if system != BASES[0] else (system, 0, 0)
            )  # the base itself is one
            if system in rows and of_base not in self.bases:
                row = rows[system]
                self.bases[of_base] = MadePoint(
                    *of_base, name, row, self.scored(run, row), asked=row.heads_open
                )

    def scored(self, run: RunFolder, row: ResultRow) -> Scored:
        """The statistics of a system's outputs, in the metric that decides."""
        outputs = (run / f"hypotheses/{row.system}.txt").read_bytes().decode().split("\n")[:-1]
        return score(outputs, self.comparison.text.test[1], self.comparison.text.task.metrics[:1])


def write_results(comparison: Comparison, state: SweepState, folder: RunFolder) -> None:
    """Write the files of the comparison, print its tables and its summary, and update the page of the base.
    Raises ValueError without a finished point."""
    results = Results(comparison, state)
    if not results.points:
        raise ValueError(
            f"no point of {folder.path} is finished, so there is nothing to compare; its logs say why: {folder / 'logs'}"
        )
    task, base = comparison.text.task, comparison.base
    counts = resample_counts(len(comparison.text.test[0]), RESAMPLES)
    compared = Compared(results.points, list(results.bases.values()), counts)
    title = f"{comparison.name}: methods compared on one base"
    about = {"base": base.path.name, "base_hash": comparison.base_hash, "kinds": comparison.shared.kinds}
    sentences = write_compared(
        compared,
        folder,
        metrics=task.metrics,
        title=title,
        about=about,
        runs=results.runs,
        failed=results.failed,
        report=say,
    )
    note_comparison(base, folder)
    show_compared(compared, sentences, metrics=task.metrics, title=comparison.name)
    for page in update_pages(base, say, data_dir=comparison.config.data_dir, corpus=comparison.text.corpus):
        print(f"report: {page}")
