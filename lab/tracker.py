"""Follow the runs of a command with Weights & Biases, with one W&B run for every run folder, or with nothing.

Without a login the runs are kept offline in RUN/wandb, and the command ends with the line that
uploads them. Under `wandb agent` the run that the command asks for is the agent's point of the sweep; a base
that is trained on the way is a separate W&B run."""

import csv
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headgates.data.ranks import is_first
from headgates.lab import wandb_tables
from headgates.lab.wandb_run import FollowedRun, open_followed, project_name, say_how_to_upload, state_of
from headgates.records.folder import RunFolder
from headgates.records.source import Lines
from headgates.records.table import read_table

if TYPE_CHECKING:
    from headgates.lightning_modules.stage_callback import Watcher

AGENT = ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH")  # the run that `wandb agent` wants


class Tracker:
    """Follows the runs of one command. This class follows nothing; a subclass overrides its methods.

    They are called in this order: for each folder `open`, then `watchers` and `log` for its stages,
    then `finish`; after all folders `complete`, for the run that was asked for, and `close`."""

    def open(self, folder: RunFolder, kind: str, base: RunFolder, *, asked: bool) -> None:
        """Follow this folder from now on. kind: base, base-continued or pruned; base: the run it starts from,
        itself for a base; asked: whether the command was started for this run."""

    def log(self, stage: str, numbers: Mapping[str, Any], step: int) -> None:
        """Log a row of a stage's metrics.csv."""

    def watchers(self, stage: str) -> "list[Watcher]":
        """Who looks on while a stage trains."""
        return []

    def finish(self, test: Lines) -> None:
        """Log the results of the folder, whose result.json is written. test: source and reference lines."""

    def complete(self, folder: RunFolder, kind: str, base: RunFolder, test: Lines) -> None:
        """Log what is not logged yet of a finished run, even if an earlier command finished it."""

    def close(self) -> None:
        """End what is still open, however the command ends."""


def make_tracker(logger: str, facts: dict[str, Any]) -> Tracker:
    """A tracker that logs to W&B for --logger wandb, else one that does nothing. facts: commit, device and
    versions of this process. Raises ValueError as `is_followed` does."""
    return WandbTracker(facts) if is_first() and is_followed(logger) else Tracker()


def is_followed(logger: str) -> bool:
    """Whether W&B follows a command. Raises ValueError where the logger's package is not installed, or W&B
    refuses the name in WANDB_PROJECT."""
    if logger != "csv" and find_spec(logger) is None:
        raise ValueError(f"--logger {logger} needs its package: pip install {logger}, or take --logger csv")
    if logger != "wandb" or os.environ.get("WANDB_MODE") == "disabled":
        return False
    import wandb  # here: a second to import, and most runs do not use it

    try:
        wandb.Settings(project=project_name())
    except wandb.Error as error:
        raise ValueError(f"WANDB_PROJECT: {error}; choose another name") from error
    return True


class WandbTracker(Tracker):
    """Follows runs with W&B."""

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts
        self.agent = {name: os.environ[name] for name in AGENT if name in os.environ}
        self.runs: list[FollowedRun] = []  # only the last may still be open

    def open(self, folder: RunFolder, kind: str, base: RunFolder, *, asked: bool) -> None:
        """Raises ValueError where W&B refuses: the name, the login, no network."""
        import wandb

        if self.agent:
            wandb.teardown()  # it reads its environment once
            for name in self.agent:
                os.environ.pop(name, None)
            os.environ.update(self.agent if asked else {})
        config = wandb_tables.configuration(folder, self.facts)
        self.runs.append(open_followed(folder, kind, config, base))

    def log(self, stage: str, numbers: Mapping[str, Any], step: int) -> None:
        self.runs[-1].log_stage(stage, numbers, step)

    def watchers(self, stage: str) -> "list[Watcher]":
        from headgates.lab.wandb_stage import WandbWatcher  # with the trainer

        return [WandbWatcher(self.runs[-1])]

    def finish(self, test: Lines) -> None:
        self.runs[-1].finish(test)

    def complete(self, folder: RunFolder, kind: str, base: RunFolder, test: Lines) -> None:
        before = state_of(folder)
        seen = any(run.folder.path == folder.path for run in self.runs)
        if seen or (before.get("logged") and not self.agent):
            return
        self.open(folder, kind, base, asked=True)
        unseen = self.runs[-1].state["id"] != before.get("id")  # by this W&B run
        if unseen and (folder / "metrics.csv").is_file():  # something was trained
            with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    stage, step = row.pop("stage"), int(row.pop("step"))
                    self.log(stage, {name: x for name, x in row.items() if x}, step)
        self.finish(test)

    def close(self) -> None:
        if self.runs:
            import wandb

            self.runs[-1].end(1)  # `finish` has ended the others
            wandb.teardown()
        os.environ.update(self.agent)
        say_how_to_upload(self.runs)


def log_grid(
    folder: RunFolder,
    name: str,
    *,
    logger: str,
    kind: str,
    base: RunFolder,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
) -> None:
    """Log a grid as one W&B run beside the runs of its points: NAME.csv and NAME.png of the grid's folder,
    into the same W&B run again where the command is repeated; nothing without --logger wandb. A failure costs
    one line on stderr. Raises ValueError where W&B refuses the name or the login."""
    if not is_followed(logger):
        return
    import wandb

    agent = {name: os.environ.pop(name) for name in AGENT if name in os.environ}  # its run is a point's
    rows = read_table(folder, f"{name}.csv")
    table = list(rows[0]), [list(row.values()) for row in rows]
    run = open_followed(folder, kind, {"base_hash": base.run_hash(), **config}, base)
    try:
        run.attempt(
            {
                "points": lambda: run.log_table("points", table),
                "figure": lambda: run.run.log({"figure": wandb.Image(str(folder / f"{name}.png"))}),
                "summary": lambda: run.run.summary.update(dict(summary)),
            }
        )
        run.end(0)
    finally:
        run.end(1)
        wandb.teardown()
        os.environ.update(agent)
    say_how_to_upload([run])
