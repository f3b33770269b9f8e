"""Make many runs of fit.py: the points of a grid, several at once. sweep.py and compare.py share it.

The hash of a point's run is known before it starts, so a finished run is found and never repeated. What each
point came to is in the grid's folder: points.json ({"version", "points": [...]}) and logs/.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgates.configs.cli import config_hash
from headgates.configs.grid import GridOptions
from headgates.configs.schema import FitConfig
from headgates.data.ranks import processor_cores
from headgates.lab.experiment_text import ExperimentText
from headgates.lab.lab import stage_epochs
from headgates.lightning_modules.precision import resolve_precision
from headgates.models.progress import minutes, say
from headgates.pruning.jobs import (
    POLL,
    ROOT,
    Job,
    LocalJob,
    Start,
    error_of,
    last_lines,
    slurm_start,
    stop,
)
from headgates.records.fingerprint import CONTINUED, base_fingerprint, stage_fingerprint
from headgates.records.folder import RunFolder, find_runs
from headgates.records.provenance import device_name
from headgates.records.row import ResultRow
from headgates.records.run_lock import RunLocks

POINTS = "points.json"
KEPT = ("settings", "run_hash", "status", "run", "seconds", "error")  # of a point, in POINTS
UNFOUND = "it ended without an error, but no finished run has its configuration"
UNKNOWN = "how long that takes is said once a run is finished"
SLURM_POLL = 2.0  # seconds between looks at jobs
LINE = "run, or last line"
WIDTH = 140  # of the table in a log file
# settings that decide which text is read
TEXT = ("data", "data_dir", "src", "tgt", "test_sentences")


@dataclass
class GridPoint:
    """One run of a grid. settings: what tells it from the others; words: fit.py's command line; needs: hashes
    of the runs that it starts from; epochs: what its run, and each of those, trains, by hash; system: the row
    that is shown, None for the run's own; here: makes the run in this process, for one that takes less time
    than a process takes to start."""

    settings: dict[str, Any]
    words: list[str]
    run_hash: str
    needs: tuple[str, ...] = ()
    epochs: Mapping[str, int] = field(default_factory=dict)
    system: str | None = None
    here: Callable[[], object] | None = None
    status: str = "waiting"  # waiting, running, done, failed
    run: str | None = None  # the name of its folder
    seconds: float = 0.0  # of all its starts together
    error: str | None = None
    row: ResultRow | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        return ", ".join(f"{name} {short(value)}" for name, value in self.settings.items())

    @property
    def score(self) -> str:
        """The metric that decides with its interval; empty without a result."""
        if self.row is None:
            return ""
        low, high = self.row.main.ci95 or (self.row.main.value,) * 2
        return f"{self.row.metric} {self.row.main.value:.2f} ({low:.1f} to {high:.1f})"

    @property
    def heads(self) -> str:
        return f"{self.row.heads_open}/{self.row.heads_total}" if self.row else ""

    def finish(self, run: RunFolder) -> None:
        """Take over the result of the finished run."""
        self.row = run.row_of(self.system or run.own_system())
        self.status, self.error, self.run = "done", None, run.path.name


class Running(NamedTuple):
    """A point whose run is being made, since `begin` (time.monotonic)."""

    point: GridPoint
    job: Job
    begin: float


def short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- runs by their hashes


def planned_runs(configs: Sequence[FitConfig]) -> list[tuple[str, tuple[str, ...], dict[str, int]]]:
    """The hash of each configuration's run, the hashes of the runs that it starts from, and what all of them
    train; each text is loaded once. Raises ValueError as fit.py where a text or a base is missing."""
    texts: dict[str, ExperimentText] = {}
    planned: list[tuple[str, tuple[str, ...], dict[str, int]]] = []
    for config in configs:
        key = repr([getattr(config, name) for name in TEXT])
        text = texts[key] = texts.get(key) or ExperimentText(config)
        base = None if config.base is None else str(RunFolder.open(config.base).run_hash())
        run_hash, needs = run_hashes(config, text, base)
        planned.append((run_hash, needs, epochs_by_run(config, run_hash, *needs)))
    return planned


def epochs_by_run(config: FitConfig, run_hash: str, base: str, *continued: str) -> dict[str, int]:
    """Hash -> epochs of training, of the run of a configuration, of its base, and of that trained on."""
    stages = stage_epochs(config, None)
    of_base, more = stages.pop("base"), stages.pop("base-continued", 0)
    found = dict.fromkeys(continued, more) | ({base: of_base} if config.base is None else {})
    return found if config.base_alone else {run_hash: sum(stages.values()), **found}


def estimate(
    points: Sequence[GridPoint], made: Mapping[str, RunFolder], base: RunFolder | None, jobs: int
) -> str:
    """How long the points that wait will take, in words: what they train and translate, by the times that
    finished runs, or the base, recorded."""
    waiting = [point for point in points if point.status == "waiting" and point.run_hash not in made]
    if not waiting:
        return ""
    todo = {name: n for point in waiting for name, n in point.epochs.items() if name not in made}
    known = [made[name] for point in points for name in (point.run_hash, *point.needs) if name in made]
    rows = [row for run in (*known, *filter(None, [base])) for row in run.rows()]
    stages = [row.stage for row in rows if row.stage and row.stage.get("seconds") and row.stage.get("epochs")]
    passes = [row.seconds for row in rows if row.seconds]
    what = f"{len(waiting)} runs to make, {sum(todo.values())} epochs of training in all"
    if not stages if any(todo.values()) else not passes:
        return f"{what}; {UNKNOWN}"
    epoch = fmean(stage["seconds"] / stage["epochs"] for stage in stages) if stages else 0.0
    seconds = (epoch * sum(todo.values()) + (fmean(passes) if passes else 0.0) * len(waiting)) / jobs
    return f"{what}: at least about {minutes(seconds)}, by the times of finished runs"


def run_hashes(config: FitConfig, text: ExperimentText, base: str | None) -> tuple[str, tuple[str, ...]]:
    """The hash of a configuration's run on this text, and the hashes of the runs that it starts from, its
    base first. base: the hash of the base that it names."""
    precision = resolve_precision(config, device_name())
    base = base or config_hash(base_fingerprint(config, text.corpus, precision))
    if config.base_alone:
        return base, (base,)
    gates = [config.gate, *[CONTINUED] * ("base-continued" in config.systems)]
    run, *continued = (
        config_hash(
            stage_fingerprint(config, text.corpus, precision, base_hash=base, gate=gate, test=text.test)
        )
        for gate in gates
    )
    return run, (base, *continued)


class FinishedRuns:
    """The finished runs below a folder. A run is read again only when its files have changed."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self.seen: dict[Path, tuple[list[int], str | None]] = {}

    def __call__(self) -> dict[str, RunFolder]:
        """Hash -> run. One with a broken result.json does not count: fit.py reports it."""
        runs: dict[str, RunFolder] = {}
        for folder in find_runs(self.root):
            files = [folder / "config.yaml", folder / "result.json"]
            changed = [path.stat().st_mtime_ns if path.exists() else 0 for path in files]
            if self.seen.get(folder.path, ([], None))[0] != changed:
                run_hash = None
                with suppress(ValueError):
                    run_hash = folder.run_hash() if folder.finished() else None
                self.seen[folder.path] = changed, run_hash
            run_hash = self.seen[folder.path][1]
            if run_hash and (run_hash not in runs or folder.is_original()):
                runs[run_hash] = folder
        return runs


def precision_words(config: FitConfig, options: GridOptions) -> list[str]:
    """The flag that gives every run the precision of its hash, whatever its own process would choose. Raises
    ValueError at auto where the runs are made on other machines."""
    if config.precision == "auto" and options.slurm:
        raise ValueError(
            "--slurm needs a precision: auto is chosen by this machine, and the runs are made on others; "
            "write precision: bf16, or 32, among the settings of the runs"
        )
    return ["--precision", resolve_precision(config, device_name())]


# ---------------------------------------------------------------- the grid


@contextmanager
def only_one(folder: RunFolder) -> Iterator[None]:
    """Wait until no other process works in this grid's folder, then keep others from it."""
    locks = RunLocks()
    locks.hold(folder.path.parent, folder.path.name)
    try:
        yield
    finally:
        locks.release()


def run_grid(
    points: Sequence[GridPoint],
    folder: RunFolder,
    options: GridOptions,
    *,
    runs: str,
    data_dir: str | None,
    retry: bool,
    base: RunFolder | None = None,
) -> None:
    """Make the runs of the points that are not finished; every change of a point is saved in the folder.
    base: that of all points, whose times tell how long they will take.

    A point that fails does not stop the others; points that failed in an earlier command are tried again with
    `retry`. Ctrl-C ends all processes, and is raised again. Raises ValueError on Windows, and at --slurm as
    `slurm_start`."""
    if sys.platform == "win32":
        raise ValueError("the runs are stopped by process groups, which Windows does not have; use WSL")
    start: Start = slurm_start(options.slurm, folder / "slurm") if options.slurm else LocalJob
    jobs = min(options.jobs or (len(points) if options.slurm else 1), len(points))
    threads = options.threads or (0 if options.slurm else max(1, processor_cores() // jobs))
    flags = ["--resume", "--unique", "--logger", options.logger, "--runs", runs, "--threads", str(threads)]
    flags += ["--data-dir", data_dir] if data_dir else []
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    finished, running = FinishedRuns(runs), dict[str, Running]()  # by run hash
    made = finished()
    recall(points, folder, made, retry=retry)

    def end(point: GridPoint, since: float, error: str | None) -> None:
        point.seconds += time.monotonic() - since
        settle(point, finished().get(point.run_hash), error, folder)
        save(points, folder)
        if point.status == "done" and unknown:
            known = estimate(points, finished(), base, jobs)
            if not known.endswith(UNKNOWN):  # as it does after a run without training
                unknown.clear()
                say(known or "all runs are made")

    text = estimate(points, made, base, jobs)
    unknown = [text] if text.endswith(UNKNOWN) else []
    if text:
        say(text)
    queue = []
    for point in points:
        if point.run_hash in made:
            settle(point, made[point.run_hash], None, folder)
        elif point.status == "waiting" and point.here is None:
            queue.append(point)
        elif point.status == "waiting":
            end(point, time.monotonic(), made_here(point))
    live = Live(get_renderable=lambda: table(folder, points, running), refresh_per_second=2, transient=True)
    with live if sys.stdout.isatty() else nullcontext():
        try:
            while queue or running:
                made = finished()
                for point in list(queue):
                    # a point waits while another makes its run, or a run that it starts from
                    needed = {each for entry in running.values() for each in entry.point.needs}
                    busy = (needed - made.keys()) | running.keys()
                    if len(running) >= jobs or busy & {point.run_hash, *point.needs}:
                        continue
                    queue.remove(point)
                    point.status, log = "running", log_of(folder, point)
                    save(points, folder)
                    command = [sys.executable, "-m", "headgates", "fit", *point.words, *flags]
                    job = start(command, log, environment)
                    running[point.run_hash] = Running(point, job, time.monotonic())
                    say(f"{point.title}: started ({log})")
                for run_hash, (point, job, begin) in list(running.items()):
                    if (code := job.poll()) is not None:
                        del running[run_hash]
                        end(point, begin, error_of(job, code) if code else None)
                if running:
                    time.sleep(SLURM_POLL if options.slurm else POLL)
        except BaseException:  # whatever the exception: nothing keeps running unwatched
            stop([entry.job for entry in running.values()])
            for point, _, begin in running.values():
                point.seconds += time.monotonic() - begin
            save(points, folder)
            raise
    save(points, folder)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table(folder, points))


def settle(point: GridPoint, run: RunFolder | None, error: str | None, folder: RunFolder) -> None:
    """Record and say what a point came to. run: its finished run, if there is one."""
    if run is not None and error is None:
        point.finish(run)
        took = f"in {minutes(point.seconds)}" if point.seconds else "before"
        say(f"{point.title}: done {took}: {point.heads} heads, {point.score} ({point.run})")
        return
    point.status, point.error = "failed", error or UNFOUND
    took, log = minutes(point.seconds), log_of(folder, point)
    say(f"{point.title}: failed after {took}: {point.error} (log: {log})")


def made_here(point: GridPoint) -> str | None:
    """Make the point's run in this process, and return its error, which stops no other point."""
    assert point.here is not None
    try:
        point.here()
    except (ValueError, OSError) as error:
        return " ".join(str(error).split())
    return None


def log_of(folder: RunFolder, point: GridPoint) -> Path:
    return folder / f"logs/{point.run_hash}.log"


def save(points: Sequence[GridPoint], folder: RunFolder) -> None:
    content = [{name: getattr(point, name) for name in KEPT} for point in points]
    folder.write_json(POINTS, {"points": content})


def recall(
    points: Sequence[GridPoint], folder: RunFolder, made: Mapping[str, RunFolder], *, retry: bool
) -> None:
    """Take over which points failed in an earlier command, unless they are tried again, and their seconds."""
    if not (folder / POINTS).is_file():
        return
    cure = f"remove {folder / POINTS}; finished runs are found without it"
    before = folder.read_json(POINTS, cure=cure)
    try:
        known = {entry["run_hash"]: entry for entry in before["points"]}
        for point in points:
            if entry := known.get(point.run_hash):
                point.seconds = float(entry["seconds"])
                if entry["status"] == "failed" and not retry and point.run_hash not in made:
                    point.status, point.error = "failed", str(entry["error"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / POINTS} is broken ({error!r}); {cure}") from None


def table(
    folder: RunFolder, points: Sequence[GridPoint], running: Mapping[str, Running] | None = None
) -> Table:
    """A row for each point, or with `running` for each that runs, with the last line that it has written."""
    counts = Counter(point.status for point in points)
    title = ", ".join(f"{count} {status}" for status, count in counts.items())
    shown = Table(title=f"{folder.path}: {title}", title_justify="left")
    for name in (*points[0].settings, "state", LINE, "heads", "score", "time"):
        shown.add_column(name, no_wrap=name != LINE, max_width=60)  # in a narrow table LINE gives way
    entries = list(running.values()) if running is not None else [(point, None, None) for point in points]
    for point, job, begin in entries:
        line = next(reversed(last_lines(job)), "") if job else point.run or point.error or ""
        seconds = point.seconds + (time.monotonic() - begin if begin else 0)
        before = (*map(short, point.settings.values()), point.status)
        after = (point.heads, point.score, minutes(seconds) if seconds else "")
        shown_line = Text(line, no_wrap=True, overflow="ellipsis")  # Text: it may look like markup
        shown.add_row(*map(Text, before), shown_line, *after)
    return shown
