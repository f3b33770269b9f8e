"""Run every combination of a sweep file's values, and print one table of them.

python sweep.py configs/sweeps/lambda.yaml --jobs 2
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgates.commands import start
from headgates.commands.fit import NONE, FitOptions, fitted
from headgates.configs.fields import REQUIRED, check_plain_name, check_ranges, setting
from headgates.configs.grid import GridOptions
from headgates.configs.own_file import own_file
from headgates.configs.settings import check_runs
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.pruning.make import Row as Made
    from headgates.records.folder import RunFolder
    from headgates.records.table import TableRow


@dataclass(frozen=True, kw_only=True)
class SweepOptions(GridOptions):
    """Run every combination of a sweep file's values, and print one table of them.

    python sweep.py configs/sweeps/lambda.yaml --jobs 2
    python sweep.py configs/sweeps/lambda.yaml --slurm timeout_min=240 gpus_per_node=1
    """

    file: str = setting(
        REQUIRED, "a sweep file in W&B's format, or the name of one such as lambda", positional=True
    )
    runs: str = setting("runs", "Folder of all runs.")
    name: str | None = setting(None, "Name of what the command makes. One is put together without it.")
    data_dir: str | None = setting(None, "Folder with local copies of named corpora.")
    threads: int = setting(0, "CPU threads for torch, 0 for all.", at_least=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_plain_name("--name", self.name)
        check_runs(self.runs)


@dataclass(frozen=True)
class Trial:
    """settings: those in which trials differ; words: of its command line, after `fit`, of which
    `given` are by dotted name."""

    settings: dict[str, Any]
    words: list[str]
    options: FitOptions
    given: dict[str, Any]

    @property
    def title(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.settings.items()) or "fit"

    @property
    def is_timed(self) -> bool:
        made = [] if self.options.gate == NONE else self.options.own_recipes()
        return any(recipe.is_timed for recipe in made)


def main() -> int:
    return start(
        "sweep",
        SweepOptions,
        sweep,
        interrupted="the same command continues where it stopped",
    )


def sweep(options: SweepOptions, given: Mapping[str, Any]) -> int:
    """Make the runs of all trials, and print and write their table. Returns 1 if any has failed, else 0."""
    from headgates.records.named_paths import check_data_dir

    check_data_dir(options.data_dir)
    trials = read_trials(options)
    # after every check of the file: these take seconds to import
    from headgates.pruning.at_once import at_once, check_precision, several
    from headgates.records.folder import RunFolder

    folder = RunFolder(own_file(options.runs, f"sweep-{options.name or Path(options.file).stem}"))
    processes, failed = several(options) and len(trials) > (0 if options.slurm else 1), dict[str, str]()
    if processes and not options.slurm and any(trial.is_timed for trial in trials):
        say("models are timed for a speed, so trials are made one after the other")
        processes = False
    if processes:
        for trial in trials:
            check_precision(options, trial.options.precision)
        trials = list(map(with_precision, trials))
        more = ["--resume", "--set=unique=true"]
        commands = {trial.title: ["fit", *trial.words, *more] for trial in trials}
        failed = at_once(commands, folder.path / "logs", options, threads=options.threads)
    rows: list[TableRow] = []
    for trial in trials:
        if trial.title not in failed:
            try:
                found = fitted(
                    replace(trial.options, resume=True, unique=True), trial.given, show=not processes
                )
            except (ValueError, OSError) as error:
                failed[trial.title] = " ".join(str(error).split())
            else:
                rows += [trial_row(trial, made) for made in found]
    show_sweep(folder, rows)
    for title, why in failed.items():
        say(f"failed: {title}: {why}")
    return 1 if failed else 0


def with_precision(trial: Trial) -> Trial:
    """The trial with the precision that it has in this process: with fewer threads its own might choose
    another, whose runs are not found here again."""
    if trial.options.precision != "auto":
        return trial
    from headgates.lightning_modules.precision import resolve_precision
    from headgates.records.provenance import device_name

    precision = resolve_precision(trial.options, device_name(), say)
    return replace(
        trial,
        words=[*trial.words, f"--precision={precision}"],
        options=replace(trial.options, precision=precision),
        given={**trial.given, "precision": precision},
    )


def read_trials(options: SweepOptions) -> list[Trial]:
    """The trials of the file. Raises ValueError, naming the trial, where fit would refuse it, and at flags
    that no trial has."""
    from headgates.configs.cli import read_given
    from headgates.pruning.sweep_file import read_sweep

    shared = [f"--runs={options.runs}"]
    shared += [] if options.data_dir is None else [f"--data-dir={options.data_dir}"]
    shared += [f"--threads={options.threads}"] * bool(options.threads)
    trials = []
    for number, (settings, words) in enumerate(read_sweep(options.file), start=1):
        try:
            trial = Trial(settings, [*words, *shared], *read_given(FitOptions, [*words, *shared]))
            if trial.options.name is not None or trial.options.fresh:
                raise ValueError("--name and --fresh are of one run; leave them out, runs name themselves")
        except ValueError as error:
            raise ValueError(f"{options.file}: trial {number} {settings}: {error}") from None
        trials.append(trial)
    return trials


def trial_row(trial: Trial, made: "Made") -> "TableRow":
    """A row of sweep.csv."""
    from headgates.records.table import with_ends

    result = made.result
    metric, main = result.metric, result.main
    return {
        **trial.settings,
        "model": result.label,
        "heads_open": result.heads_open,
        metric: main.value,
        **with_ends(metric, main.ci95),
        f"{metric}_difference": main.difference,
        **with_ends(f"{metric}_difference", main.difference_ci95),
        "p_value": main.p_value,
        "run": made.run.path.name,
    }


def show_sweep(folder: "RunFolder", rows: "Sequence[TableRow]") -> None:
    """Print the table, and write it as sweep.csv and sweep.md."""
    from headgates.records.table import markdown_table, write_table
    from headgates.report.table import show

    if not rows:
        return
    columns = list(rows[0])
    cells = [[cell_text(row[column]) for column in columns] for row in rows]
    words = columns.index("model") + 1
    show(folder.path.name, columns, cells, words)
    write_table(folder, "sweep.csv", rows)
    folder.write_text("sweep.md", "\n".join(markdown_table(columns, cells, words)))
    print(f"table: {folder.path / 'sweep.csv'}")


def cell_text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":  # as Lightning starts the other processes of --devices
    sys.exit(main())
