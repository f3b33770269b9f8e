"""The progress bar of a stage on a terminal: which stage of how many, which epoch of how many, and how far it
is."""

import sys
from typing import Any

import pytorch_lightning as pl
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class StageBar(pl.Callback):
    """One line below the log that goes over the whole stage and leaves with it. Epochs count from 1, as in
    the log.

    Lightning's own bar counts epochs from 0, starts again at every one, and cuts its text off at 80
    columns."""

    def __init__(self, label: str):
        """label: the stage, and which of how many it is."""
        self.label = label
        self.progress: Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero or not sys.stdout.isatty():  # a log file has no bar
            return
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            expand=True,
            transient=True,
            refresh_per_second=4,
        )
        self.progress.add_task(
            self.label, total=(trainer.max_epochs or 0) * int(trainer.num_training_batches)
        )
        self.progress.start()

    def show(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Bring text and bar up to date, which is seen at the next of a few refreshes a second."""
        if self.progress is None:
            return
        doing = ", validation" if trainer.validating else ""
        self.progress.update(
            self.progress.task_ids[0],
            completed=trainer.fit_loop.epoch_loop.total_batch_idx + 1,  # of all epochs, also those resumed
            description=f"{self.label}, epoch {trainer.current_epoch + 1} of {trainer.max_epochs}{doing}",
        )

    def show_at_once(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """The same, and seen, however short an epoch is."""
        self.show(trainer)
        if self.progress is not None:
            self.progress.refresh()

    def close(self, *_: Any, **__: Any) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    on_train_batch_end = show
    on_train_epoch_start = on_validation_start = show_at_once
    on_train_end = on_exception = close
