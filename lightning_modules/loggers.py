"""Where logged numbers go: always to metrics.csv in the run folder; on request to TensorBoard or a tracker
too."""

import csv
import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from headgates.data.atomic_file import atomic_file
from headgates.models.progress import say

Log = Callable[[str, dict[str, float], int], None]


class MetricsFile(Logger):
    """metrics.csv: one row for each logged step, with its stage. Each save rewrites the whole file; a resumed
    run continues it. Hyperparameters are not logged: the run folder holds config.yaml."""

    name = "metrics"

    def __init__(self, path: str | Path, stage: str, also: Log = lambda *row: None):
        """also: called with every row: the stage, the numbers and the step."""
        super().__init__()
        self.path, self.stage, self.also = Path(path), stage, also
        self.rows: dict[int, dict[str, Any]] = {}
        self.before: list[dict[str, Any]] = []  # rows of other stages
        if not self.path.is_file():
            return
        try:
            for row in csv.DictReader(io.StringIO(self.path.read_text(encoding="utf-8"))):
                if row["stage"] == stage:
                    self.rows[int(row["step"])] = {key: value for key, value in row.items() if value != ""}
                else:
                    self.before.append(row)
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise ValueError(
                f"{self.path} is not what fit writes ({error}); remove it, and the run goes on without it"
            ) from error

    @property
    def version(self) -> str:
        return self.stage

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        pass

    def forget_from(self, first_step: int) -> None:
        """Drop the rows from `first_step` (counted from 0) on, which a resumed run will log again."""
        self.rows = {step: row for step, row in self.rows.items() if step < first_step}

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = self.rows.setdefault(int(step or 0), {"stage": self.stage, "step": int(step or 0)})
        numbers = {name: float(value) for name, value in metrics.items()}
        row.update(numbers)
        self.also(self.stage, numbers, int(step or 0))

    @rank_zero_only
    def save(self) -> None:
        rows = [*self.before, *(self.rows[step] for step in sorted(self.rows))]
        first = ["stage", "step", "epoch"]
        columns = [*first, *sorted({name for row in rows for name in row}.difference(first))]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        with atomic_file(self.path) as file:
            file.write(text.getvalue().encode())

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def make_loggers(kind: str, folder: Path, stage: str, also: Log) -> list[Logger]:
    """Return the loggers of a stage: metrics.csv, and for kind 'tensorboard' TensorBoard. also: of
    MetricsFile."""
    loggers: list[Logger] = [MetricsFile(folder / "metrics.csv", stage, also)]
    if kind == "tensorboard":
        loggers.append(TensorBoardLogger(save_dir=folder, name="tensorboard", version=stage))
        say(f"{stage}: to look at it, tensorboard --logdir {folder / 'tensorboard'}")
    return loggers
