"""Callbacks of a stage: checkpoints, the test of convergence, the history of the gates, and lines on its progress."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.callbacks import RichProgressBar

from data.atomic_file import atomic_file
from gates import GateBank
from lightning_modules.loggers import MetricsFile
from lightning_modules.module import StageModule
from models.checkpoint import save_file
from models.progress import minutes, say
from runfolder.folder import RunFolder


class Remembers(pl.Callback):
    """A callback whose attributes named in `remembered` are kept in every checkpoint, so that a resumed stage goes on with them."""

    remembered: tuple[str, ...]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Checkpoints(Remembers):
    """Writes the best weights by `monitor` (lower is better) and, after every epoch, all that an exact resume needs.

    Both are plain tensors, written to a temporary name and renamed. Must stand before AverageWeights in the list of callbacks: the best
    weights are the averaged ones."""

    remembered = ("best", "best_epoch", "losses", "eligible_losses", "seconds", "tokens", "steps", "stopped")

    def __init__(self, folder: RunFolder, *, best: str, last: str, monitor: str):
        self.folder, self.best_name, self.last_name, self.monitor = folder, best, last, monitor
        self.best = float("inf")
        self.best_epoch = -1
        self.losses: list[float] = []  # full-validation loss, epoch by epoch
        self.eligible_losses: list[float] = []  # of the epochs that may be chosen: without those under the noise of gates
        self.seconds = 0.0  # of training, validation and BLEU samples left out
        self.tokens = 0
        self.steps = 0
        self.stopped: str | None = None  # why the stage ended before its last epoch
        self._begin = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int) -> None:
        self.tokens += batch.target_tokens * trainer.world_size

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.seconds += time.perf_counter() - self._begin

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, StageModule)
        self.losses.append(float(trainer.callback_metrics["val/loss"]))
        self.eligible_losses += [self.losses[-1]] * module.eligible
        value = float(trainer.callback_metrics[self.monitor])
        if module.eligible and value < self.best and trainer.is_global_zero:
            self.best, self.best_epoch = value, trainer.current_epoch
            state = module.model.state_dict()
            gates = {name: state.pop(name) for name in list(state) if name.startswith("head_gates.")}
            bank = module.bank
            described = module.task.describe(module.model)
            save_file(self.folder / self.best_name, {**described, "model": state, "gates": gates, "epoch": trainer.current_epoch})
            if bank is not None:
                bank.save(self.folder / self.best_name.replace("best.pt", "gates.json"))

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, StageModule)
        self.steps, self.stopped = trainer.global_step, module.stopped
        last = self.folder / self.last_name
        with atomic_file(last) if trainer.is_global_zero else nullcontext() as file:  # every process takes part, the first one writes
            trainer.save_checkpoint(file.name if file else last, weights_only=False)  # False: the optimiser's state too
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.save()

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, MetricsFile):
                logger.forget_from(trainer.global_step)


class GateHistory(Remembers):
    """Writes gates_history.npz: steps (n,), log_alpha (n, heads) and the names of the heads (heads,), with a row every `every` steps.
    Another kind of gate than Hard Concrete has its own position in place of log_alpha."""

    remembered = ("steps", "values")

    def __init__(self, path: Path, every: int = 20):
        self.path, self.every = path, every
        self.steps: list[int] = []
        self.values: list[list[float]] = []

    def add_row(self, module: pl.LightningModule, step: int) -> None:
        self.steps.append(step)
        self.values.append([x for _, gate in bank_of(module).items() for x in gate.position().tolist()])

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not self.steps:
            self.add_row(module, 0)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step % self.every == 0 and trainer.global_step > self.steps[-1]:
            self.add_row(module, trainer.global_step)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:  # gates are the same in all processes
            return
        heads = [f"{site.name}.{head}" for site in bank_of(module).sites for head in range(site.heads)]
        log_alpha = np.array(self.values, dtype=np.float32)
        with atomic_file(self.path) as file:
            np.savez_compressed(file, steps=np.array(self.steps), log_alpha=log_alpha, heads=np.array(heads))


def bank_of(module: pl.LightningModule) -> GateBank:
    assert isinstance(module, StageModule)
    assert module.bank is not None
    return module.bank


class StageLog(pl.Callback):
    """Prints an estimate of the stage's duration after its first steps, and one line after every epoch."""

    MEASURED_STEPS = 20  # before the estimate

    def __init__(self, stage: str, steps_per_epoch: int):
        self.stage, self.steps = stage, steps_per_epoch
        self._first = 0.0
        self._seen = 0

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        self._seen += 1
        if self._seen == 3:  # the first steps warm caches up
            self._first = time.perf_counter()
        if self._seen == 3 + self.MEASURED_STEPS:
            seconds_per_step = (time.perf_counter() - self._first) / self.MEASURED_STEPS
            epochs = (trainer.max_epochs or 0) - trainer.current_epoch
            left = ((trainer.max_epochs or 0) * self.steps - trainer.global_step) * trainer.accumulate_grad_batches
            if trainer.is_global_zero:
                say(f"{self.stage}: {epochs} epochs of {self.steps} steps, about {minutes(seconds_per_step * left)} and the validations")

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(module, StageModule)
        metric = module.task.metrics[0].name
        logged = trainer.callback_metrics
        numbers = {name: float(logged[f"val/{name}"]) for name in ("loss", metric) if f"val/{name}" in logged}
        if module.gating is not None:
            numbers["open heads"] = module.gate_bank.open().count()
        text = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
        say(f"{self.stage}: epoch {trainer.current_epoch + 1} of {trainer.max_epochs}: {text}")


def progress_bar() -> list[pl.Callback]:
    """Return Rich's progress bar on a terminal, and nothing where the output is a log file."""
    return [RichProgressBar(leave=False)] if sys.stdout.isatty() else []
