"""Make the rows of many recipes: one after the other in this process, or several at once, each in a process
of its own, here or in jobs of SLURM.

A finished row is found and never made again. A recipe that fails does not stop the others. What processes
write is in the grid's folder, logs/."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgates.configs.cli import config_hash
from headgates.configs.grid import GridOptions
from headgates.configs.recipe import Recipe
from headgates.data.ranks import processor_cores
from headgates.lab.lab import Lab
from headgates.models.progress import minutes, say
from headgates.pruning.choosers import is_drawn
from headgates.pruning.jobs import POLL, ROOT, Job, LocalJob, Start, error_of, last_lines, slurm_start, stop
from headgates.pruning.make import Row, make, recipe_key
from headgates.records.fingerprint import trains
from headgates.records.folder import RunFolder, find_runs

SLURM_POLL = 2.0  # seconds between looks at jobs


@dataclass(frozen=True)
class Failed:
    """A recipe without a row, and why."""

    recipe: Recipe
    error: str

    def __str__(self) -> str:
        return f"{self.recipe.title}: {self.error}"


def without_repeats(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes, of those that no seed changes the first seed's alone."""
    first_seed = min((recipe.seed for recipe in recipes), default=0)
    return [recipe for recipe in recipes if recipe.seed == first_seed or is_drawn(recipe)]


def rows_of(
    lab: Lab,
    base: RunFolder,
    recipes: Sequence[Recipe],
    options: GridOptions,
    words: Callable[[Recipe], Sequence[str]],
) -> tuple[list[Row], list[Failed]]:
    """The rows of the recipes that could be made, in their order, and the others. words: the command line
    that makes one. Raises ValueError at --slurm as `slurm_start` does."""
    waiting = [recipe for recipe in recipes if not is_finished(lab, base, recipe)]
    if len(recipes) > 1 or waiting:
        say(f"{len(recipes)} recipes, {len(waiting)} of them to make{estimate(lab, base, waiting)}")
    failed: dict[Recipe, Failed] = {}
    if (options.jobs > 1 or options.slurm) and len(waiting) > 1:
        alone = [recipe.trained_as_long for recipe in waiting if recipe.epochs]
        prepared, failed = in_turn(lab, base, list(dict.fromkeys(alone)))  # which others wait for
        del prepared
        failed = at_once(lab, base, waiting, options, words)
    rows, more = in_turn(lab, base, [recipe for recipe in recipes if recipe not in failed])
    return rows, [*failed.values(), *more.values()]


def in_turn(lab: Lab, base: RunFolder, recipes: Sequence[Recipe]) -> tuple[list[Row], dict[Recipe, Failed]]:
    """Make the rows in this process. The error of a single recipe is raised."""
    rows, failed = list[Row](), dict[Recipe, Failed]()
    for recipe in recipes:
        try:
            rows.append(make(lab, base, recipe))
        except (ValueError, OSError) as error:
            if len(recipes) == 1:
                raise
            failed[recipe] = Failed(recipe, " ".join(str(error).split()))
            say(f"failed: {failed[recipe]}")
    return rows, failed


def is_finished(lab: Lab, base: RunFolder, recipe: Recipe) -> bool:
    key = config_hash(recipe_key(lab, base, recipe))
    runs = (run for run in find_runs(lab.settings.runs) if run.run_hash() == key)
    return any(run.finished() for run in runs) and not lab.settings.fresh


def estimate(lab: Lab, base: RunFolder, waiting: Sequence[Recipe]) -> str:
    """How long the recipes that wait will take, by the times that the base's training recorded."""
    epochs = sum(recipe.epochs for recipe in waiting if trains(recipe))
    stages = [row.stage for row in base.rows() if row.stage and row.stage.get("seconds")]
    if not epochs or not stages:
        return ""
    epoch = fmean(stage["seconds"] / max(1, stage["epochs"]) for stage in stages)
    return (
        f"; their {epochs} epochs of training take about {minutes(epoch * epochs)}, by the time of the base's"
    )


# ---------------------------------------------------------------- several at once


def at_once(
    lab: Lab,
    base: RunFolder,
    recipes: Sequence[Recipe],
    options: GridOptions,
    words: Callable[[Recipe], Sequence[str]],
) -> dict[Recipe, Failed]:
    """Make the runs of these recipes in processes; what failed is returned. Ctrl-C ends all processes, and is
    raised again. Raises ValueError on Windows."""
    if sys.platform == "win32":
        raise ValueError("processes are stopped by groups, which Windows does not have; use WSL, or --jobs 1")
    if options.slurm and lab.settings.precision == "auto" and any(map(trains, recipes)):
        raise ValueError(
            "--slurm needs a precision: auto is chosen by this machine, and the runs are made on others; "
            "give --precision bf16, or 32"
        )
    folder = Path(lab.settings.runs) / f"logs-{base.path.resolve().name}"
    folder.mkdir(parents=True, exist_ok=True)
    start: Start = slurm_start(options.slurm, folder / "slurm") if options.slurm else LocalJob
    jobs = min(options.jobs or len(recipes), len(recipes))
    threads = lab.settings.threads or (0 if options.slurm else max(1, processor_cores() // jobs))
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    queue, running, failed = list(recipes), dict[Recipe, tuple[Job, float]](), dict[Recipe, Failed]()
    live = Live(get_renderable=lambda: table(running), refresh_per_second=2, transient=True)
    with live if sys.stdout.isatty() else nullcontext():
        try:
            while queue or running:
                while queue and len(running) < jobs:
                    recipe = queue.pop(0)
                    log = folder / f"{config_hash(recipe_key(lab, base, recipe))}.log"
                    command = [sys.executable, "-m", "headgates", *words(recipe), f"--threads={threads}"]
                    running[recipe] = start(command, log, environment), time.monotonic()
                    say(f"{recipe.title}: started ({log})")
                for recipe, (job, begin) in list(running.items()):
                    if (code := job.poll()) is not None:
                        del running[recipe]
                        took = minutes(time.monotonic() - begin)
                        if code:
                            failed[recipe] = Failed(recipe, error_of(job, code))
                        say(f"{recipe.title}: {'failed' if code else 'done'} after {took}")
                if running:
                    time.sleep(SLURM_POLL if options.slurm else POLL)
        except BaseException:  # whatever the exception: nothing keeps running unwatched
            stop([job for job, _ in running.values()])
            raise
    return failed


def table(running: Mapping[Recipe, tuple[Job, float]]) -> Table:
    """A row for each recipe that runs, with the last line that it has written."""
    shown = Table("recipe", "last line", "time")
    for recipe, (job, begin) in running.items():
        line = next(reversed(last_lines(job)), "")
        took = minutes(time.monotonic() - begin)
        shown.add_row(Text(recipe.title), Text(line, no_wrap=True, overflow="ellipsis"), took)
    return shown
