"""Where logged numbers go: always the run folder's metrics.csv, beside it Weights & Biases or TensorBoard on request."""

import csv
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

_OFFLINE = "wandb: no login found, so this run is kept offline; `wandb sync {folder}/wandb/offline-run-*` uploads it later"


class MetricsFile(Logger):
    """metrics.csv: one row a logged step, the stage beside it; rewritten whole at each save, continued by a resumed run."""

    def __init__(self, path: str | Path, stage: str):
        super().__init__()
        self.path, self.stage = Path(path), stage
        self.rows: dict[int, dict[str, Any]] = {}
        self.before: list[dict[str, Any]] = []  # rows of other stages
        if self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    if row["stage"] == stage:
                        self.rows[int(row["step"])] = {key: value for key, value in row.items() if value != ""}
                    else:
                        self.before.append(row)

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return self.stage

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Nothing: the run folder holds config.yaml."""

    def forget_after(self, step: int) -> None:
        """Drop rows of steps that a resumed run will take again."""
        self.rows = {at: row for at, row in self.rows.items() if at <= step}

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = self.rows.setdefault(int(step or 0), {"stage": self.stage, "step": int(step or 0)})
        row.update({name: float(value) for name, value in metrics.items()})

    @rank_zero_only
    def save(self) -> None:
        rows = [*self.before, *(self.rows[step] for step in sorted(self.rows))]
        columns = ["stage", "step", "epoch", *sorted({name for row in rows for name in row} - {"stage", "step", "epoch"})]
        partial = self.path.with_name(self.path.name + ".part")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.path)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def make_loggers(kind: str, folder: Path, stage: str, config: dict[str, Any]) -> list[Logger]:
    """metrics.csv and, for 'wandb' or 'tensorboard', that logger. W&B goes offline by itself when there is no login, and never asks."""
    loggers: list[Logger] = [MetricsFile(folder / "metrics.csv", stage)]
    if kind == "wandb":
        loggers.append(wandb_logger(folder, stage, config))
    elif kind == "tensorboard":
        loggers.append(TensorBoardLogger(save_dir=folder, name="tensorboard", version=stage))
    return loggers


def wandb_logger(folder: Path, stage: str, config: dict[str, Any]) -> WandbLogger:
    import wandb  # here: a second to import, and most runs do not use it

    mode = os.environ.get("WANDB_MODE")
    if mode is None and not (os.environ.get("WANDB_API_KEY") or wandb.api.api_key):
        mode = "offline"
        print(_OFFLINE.format(folder=folder))
    return WandbLogger(
        name=f"{folder.name}/{stage}", group=folder.name, project="headgates", save_dir=str(folder), config=config, mode=mode or "online"
    )
