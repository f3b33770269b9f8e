"""Settings of `sweep.py`: which sweep file to run here, and how; which runs to draw; which project gets a
dashboard.

What a trial is stands in the sweep file; here stand the choices of the machine alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headgates.configs.schema import REQUIRED, check_ranges, check_runs, setting


@dataclass(frozen=True)
class SweepConfig:
    """`sweep.py FILE`: the trials of a W&B sweep file, run on this machine without an account.

    python sweep.py configs/sweeps/lambda.yaml --jobs 2
    python sweep.py pareto runs/toy-en-de-l0-0.01-s1 --siblings
    """

    file: str = setting(
        REQUIRED, "a sweep file in W&B's format, e.g. configs/sweeps/lambda.yaml", positional=True
    )
    count: int = setting(
        0, "trials, the first of the sweep; 0: the file's run_cap, or the whole grid", at_least=0
    )
    jobs: int = setting(1, "trials that run at the same time", at_least=1)
    runs: str = setting("runs", "folder of all runs; the sweep itself is written to RUNS/sweep-NAME")
    name: str | None = setting(None, "name of the sweep; default the file's, without its suffix")
    seed: int = setting(
        1, "seed of what method random draws; trial 3 of a seed is always the same", at_least=0
    )
    logger: Literal["csv", "wandb"] = setting(
        "csv", "where the trials' metrics go beside metrics.csv; instead of what the file says"
    )
    threads: int = setting(0, "CPU threads of each job, 0: this machine's shared out", at_least=0)
    data_dir: str | None = setting(None, "folder with local copies of named corpora")
    retry: bool = setting(False, "try failed trials again, each from its last whole epoch")
    fresh: bool = setting(False, "try failed trials again, each from its beginning; what is done stays")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.name is not None:
            check_file_name(self.name)
        check_runs(self.runs)

    @property
    def folder(self) -> Path:
        """Where the sweep's state, logs and figure are."""
        return Path(self.runs) / f"sweep-{self.name or Path(self.file).stem}"


@dataclass(frozen=True)
class ParetoConfig:
    """`sweep.py pareto RUN [RUN ...]`: BLEU against open heads of finished runs, with the Pareto front, as
    figure and tables."""

    runs: list[str] = setting(REQUIRED, "run folders", positional=True)
    siblings: bool = setting(False, "also all finished runs with gates on the same bases")
    out: str | None = setting(None, "folder to write; default `pareto` beside the first run")
    name: str = setting("pareto", "name of the files in --out: NAME.csv, .md, .png, .svg, .json")
    map: str | None = setting(
        None, "draw beside it which heads one run leaves open: a lambda, or auto for the fewest within 1 BLEU"
    )
    copies: bool = setting(False, "also copy each run's result.json, to NAME/RUN.json in --out")

    def __post_init__(self) -> None:
        check_file_name(self.name)
        if self.map not in (None, "auto"):
            try:
                float(self.map)
            except ValueError:
                raise ValueError(f"--map: expected the lambda of a run, or auto, got {self.map!r}") from None


@dataclass(frozen=True)
class DashboardConfig:
    """`sweep.py dashboard ENTITY/PROJECT`: a W&B workspace for the runs of a project."""

    target: str = setting(REQUIRED, "ENTITY/PROJECT, as W&B calls them", positional=True)
    out: str | None = setting(None, "write the dashboard to this file instead of to W&B")


def check_file_name(name: str) -> None:
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"--name: expected a plain name, without separators, got {name!r}")
