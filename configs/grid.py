"""Settings of every command that makes many runs: how many at once, and where."""

from dataclasses import dataclass

from headgates.configs.fields import setting


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """How the runs are made; no part of what they are."""

    jobs: int = setting(0, "Runs at the same time. 0: one, here; all with --slurm.", at_least=0)
    slurm: list[str] = setting(
        [],
        "Parameters of a SLURM job for each run. NAME=VALUE of submitit, such as timeout_min=240.",
    )
