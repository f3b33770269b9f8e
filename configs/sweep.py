"""Settings of `sweep.py`: which sweep file to run and how many runs at once; which runs to draw."""

from dataclasses import dataclass

from headgates.configs.fields import REQUIRED, check_plain_name, check_ranges, setting
from headgates.configs.grid import GridOptions
from headgates.configs.settings import check_runs


@dataclass(frozen=True)
class SweepConfig(GridOptions):
    """`sweep.py FILE`: run every combination of a sweep file's values.

    python sweep.py configs/sweeps/lambda.yaml --jobs 2
    python sweep.py configs/sweeps/lambda.yaml --slurm timeout_min=240 gpus_per_node=1
    python sweep.py pareto runs/toy-en-de-l0-0.01-s1 --siblings
    """

    file: str = setting(
        REQUIRED, "a sweep file in W&B's format, e.g. configs/sweeps/lambda.yaml", positional=True
    )
    runs: str = setting("runs", "folder of all runs; the sweep itself is written to RUNS/sweep-NAME")
    name: str | None = setting(None, "name of the sweep; default the file's, without its suffix")
    data_dir: str | None = setting(None, "folder with local copies of named corpora")
    retry: bool = setting(False, "try failed runs again, each from its last checkpoint")

    def __post_init__(self) -> None:
        check_ranges(self)
        check_plain_name("--name", self.name)
        check_runs(self.runs)


@dataclass(frozen=True)
class ParetoConfig:
    """`sweep.py pareto RUN [RUN ...]`: BLEU against open heads of finished runs, with the Pareto front, as
    figure and tables."""

    runs: list[str] = setting(REQUIRED, "run folders", positional=True)
    siblings: bool = setting(False, "also all finished runs with gates on the same bases")
    out: str | None = setting(None, "folder to write; default `pareto` beside the first run")
    name: str = setting("pareto", "name of the files in --out: NAME.csv, .md, .png, .svg, .json")

    def __post_init__(self) -> None:
        check_plain_name("--name", self.name)
