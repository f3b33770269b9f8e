"""Settings of every command that makes many runs: how many at once, and where."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import setting


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """How the runs are made; no part of what they are."""

    jobs: int = setting(0, "runs at the same time; 0: one here, all with --slurm", at_least=0)
    threads: int = setting(0, "CPU threads of each run; 0: this machine's shared out", at_least=0)
    logger: Literal["csv", "wandb"] = setting("csv", "where the metrics of the runs go beside metrics.csv")
    slurm: list[str] = setting(
        [],
        "make each run in a job of SLURM: NAME=VALUE of submitit's parameters, such as "
        "timeout_min=240 gpus_per_node=1 slurm_partition=gpu",
    )
