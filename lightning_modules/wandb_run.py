"""The Weights & Biases run of one run folder. All stages of the folder and its evaluation log into it.

RUN/wandb.json keeps the id of the W&B run, so that a resumed command continues it, and the names of the final
results that are logged already, so that the same command logs the others. A failure of W&B never stops a run:
it becomes one line on stderr.
"""

import csv
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from headgates.configs.metrics import HISTORY
from headgates.lightning_modules.loggers import StageNumbers
from headgates.lightning_modules.stage_callback import Watcher
from headgates.lightning_modules.wandb_tables import (
    FILES,
    TABLES,
    aliases,
    artifact_name,
    files,
    heads,
    heat_map,
    metadata,
    summary,
)
from headgates.workbench.folder import RunFolder
from headgates.workbench.source import Lines

STATE = "wandb.json"
GATES = "wandb/gates.json"  # the heads after every epoch so far: a resumed stage goes on with them
ROOMS = sorted({name.split("/")[0] for name in HISTORY})


def read_state(folder: RunFolder) -> dict[str, Any]:
    """Return the content of wandb.json; an empty dictionary if the folder has no W&B run."""
    state = folder.read_json(STATE) if (folder / STATE).is_file() else {}
    assert isinstance(state, dict)
    return state


def final_items(folder: RunFolder) -> list[str]:
    """Return the names of everything that is logged once the run is finished."""
    return ["summary", *TABLES, *files(folder)]


class WandbRun:
    """An open W&B run. run: a wandb.Run, which also works in processes that Lightning spawns; job: the name
    of the folder's first stage."""

    def __init__(self, run: Any, folder: RunFolder, job: str, config: dict[str, Any]):
        self.run, self.folder, self.job, self.config = run, folder, job, config
        self.ended = self.lost = False
        self.failed: list[tuple[str, Exception]] = []  # since the last report
        before = read_state(folder)
        logged = before["logged"] if before.get("id") == run.id else []
        self.state = {
            "project": run.project,
            "entity": run.entity or None,
            "id": run.id,
            "mode": run.settings.mode,
            "logged": logged,
        }
        if not (
            before and folder.finished()
        ):  # an agent that meets a finished run leaves it the W&B run that saw it trained
            folder.write_json(STATE, self.state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a spawned process: there W&B would keep pictures and tables below the working folder, where the
        run's end does not look."""
        self.__dict__.update(state)
        os.environ["WANDB_DIR"] = str(self.folder.path.resolve())

    # ---------------------------------------------------------------- history

    def prefix(self, stage: str) -> str:
        """What the names of a stage's numbers begin with: nothing for the first stage, whose names are those
        of HISTORY."""
        return "" if stage == self.job else f"{stage}/"

    def begin(self, stage: str) -> None:
        """Let the numbers of a stage be drawn over the steps of that stage; W&B's own step only grows."""
        prefix = self.prefix(stage)
        self.try_to_log("steps", lambda: self.run.define_metric(f"{prefix}step", hidden=True))
        for name in [f"{stage}/*"] if prefix else ["epoch", *(f"{room}/*" for room in ROOMS)]:
            self.try_to_log("steps", partial(self.run.define_metric, name, step_metric=f"{prefix}step"))

    def log(self, stage: str, numbers: dict[str, Any], step: int) -> None:
        """Log a row of the history. After the first failure nothing more is tried: thousands of error lines
        would help nobody."""
        if self.lost:
            return
        row = {f"{self.prefix(stage)}{name}": value for name, value in (numbers | {"step": step}).items()}
        if not self.try_to_log("history", lambda: self.run.log({"stage": stage, **row})):
            self.lost = True
            self.report_failures("the run goes on without it, and")

    def log_gates(self, rows: Sequence[dict[str, Any]], *, epoch: int, step: int) -> None:
        """Log P(open) of every head as a picture, and the heads after all epochs so far as one table."""
        if not self.lost and not self.try_to_log(
            "heat map", lambda: self.log("gates", self.gate_pictures(rows, epoch), step)
        ):
            self.report_failures("the run goes on without it, and")

    def gate_pictures(self, rows: Sequence[dict[str, Any]], epoch: int) -> dict[str, Any]:
        import wandb

        before = self.folder.read_json(GATES, list) if (self.folder / GATES).is_file() else []
        table = [*(row for row in before if row["epoch"] < epoch), *rows]
        self.folder.write_json(GATES, table)
        return {
            "gates/heads": wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in table]),
            "gates/heatmap": wandb.Image(heat_map(rows, title=f"P(open), epoch {epoch}")),
        }

    def replay(self) -> None:
        """Log the history of a run that was trained before, from its metrics.csv."""
        with (self.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        loggers = {stage: StageLogger(self, stage) for stage in dict.fromkeys(row["stage"] for row in rows)}
        for stage in loggers:
            self.begin(stage)
        for row in rows:
            logger, step, epoch = loggers[row.pop("stage")], int(row.pop("step")), float(row.pop("epoch"))
            for validated in (False, True):  # Lightning hands them over one after the other
                numbers = {
                    name: float(value)
                    for name, value in row.items()
                    if value and name.startswith("val/") is validated
                }
                if numbers:
                    logger.log_metrics({"epoch": epoch, **numbers}, step)

    # ---------------------------------------------------------------- the end

    def finish(self, test: Lines) -> None:
        """Log the final results that are not logged yet, and end the run. test: source and reference
        lines."""
        wanted = [name for name in final_items(self.folder) if name not in self.state["logged"]]
        logged = [name for name in wanted if self.try_to_log(name, partial(self.log_end, name, test))]
        self.end(0)
        self.report_failures("the same command tries again, and")
        if read_state(self.folder).get("id") == self.state["id"]:
            self.folder.write_json(STATE, {**self.state, "logged": [*self.state["logged"], *logged]})

    def log_end(self, name: str, test: Lines) -> None:
        """Log one of `final_items`: the numbers of the summary, a table, or a file as the artifact
        `<run>-<file>`."""
        import wandb

        if name == "summary":
            self.run.summary.update(summary(self.folder))
        elif name in TABLES:
            columns, rows = TABLES[name](self.folder, test)
            self.run.log({name: wandb.Table(columns=columns, data=rows)})
        else:
            artifact = wandb.Artifact(
                artifact_name(self.folder, name),
                type=FILES[name],
                metadata=metadata(self.config, self.folder),
            )
            large = (
                FILES[name] == "model"
            )  # and never changes: it is uploaded from where it lies, the others are copied
            artifact.add_file(
                str(self.folder / name),
                name=name,
                policy="immutable" if large else "mutable",
                skip_cache=True,
            )
            self.run.log_artifact(artifact, aliases=aliases(self.config))

    def end(self, exit_code: int) -> None:
        """End the W&B run; later calls do nothing. exit_code: not 0 for a run that was interrupted."""
        if not self.ended:
            self.ended = True
            self.try_to_log("the end of the run", lambda: self.run.finish(exit_code=exit_code))

    # ---------------------------------------------------------------- failures

    def try_to_log(self, what: str, action: Callable[[], Any]) -> bool:
        """Call `action` and return whether it succeeded; a failure is kept for the next report."""
        try:
            action()
        except Exception as error:  # of the disk, the network or W&B itself: none of them may cost the run
            self.failed.append((what, error))
            return False
        return True

    def report_failures(self, consequence: str) -> None:
        """Print one line about everything that failed since the last report."""
        if self.failed:
            what = ", ".join(dict.fromkeys(what for what, _ in self.failed))
            why = " ".join(str(self.failed[0][1]).split()) or type(self.failed[0][1]).__name__
            complain(f"could not log {what} ({why}); {consequence} all results are in {self.folder.path}")
            self.failed.clear()


def complain(text: str) -> None:
    print(f"wandb: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- what Lightning calls


class StageLogger(StageNumbers):
    """Logs the numbers of one stage into the folder's W&B run."""

    def __init__(self, run: WandbRun, stage: str):
        super().__init__(stage)
        self.run = run

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.run.log(self.stage, {name: float(value) for name, value in metrics.items()}, int(step or 0))


class GateMaps(Watcher):
    """Logs the gates after every epoch; epochs count from 1."""

    def __init__(self, run: WandbRun):
        self.run = run

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        if trainer.is_global_zero:
            epoch = trainer.current_epoch + 1
            # Lightning numbers steps from 0: the picture stands at the step of the epoch's validation
            self.run.log_gates(heads(module.gate_bank, epoch), epoch=epoch, step=trainer.global_step - 1)
