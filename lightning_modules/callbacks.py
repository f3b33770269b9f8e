"""Callbacks of a stage: checkpoints, the test of convergence, the history of the gates, and lines on its progress."""

import multiprocessing
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl

from data.atomic_file import atomic_file
from gates import GateBank
from lightning_modules.gating import Gating
from lightning_modules.loggers import MetricsFile
from lightning_modules.module import StageModule
from models.checkpoint import load_file, save_file
from models.progress import minutes, say
from runfolder.folder import RunFolder

RESUMED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")  # of a whole last.pt


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

    remembered = ("best", "best_epoch", "losses", "eligible_losses", "seconds", "tokens", "steps", "stopped", "settled")

    def __init__(self, folder: RunFolder, *, stage: str, best: str, last: str, monitor: str):
        self.origin = {"run_hash": folder.run_hash(), "stage": stage}  # what goes on from another's checkpoint would be neither run
        self.folder, self.best_name, self.last_name, self.monitor = folder, best, last, monitor
        self.best = float("inf")
        self.best_epoch = -1
        self.losses: list[float] = []  # full-validation loss, epoch by epoch
        self.eligible_losses: list[float] = []  # of the epochs that may be chosen: without those under the noise of gates
        self.seconds = 0.0  # of training, validation and BLEU samples left out
        self.tokens = 0
        self.steps = 0
        self.stopped: str | None = None  # why the stage ended before its last epoch
        self.settled: int | None = None  # optimiser steps taken when its gates became exact
        self._begin = 0.0

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["origin"] = self.origin

    def check_last(self, module: pl.LightningModule) -> str:
        """The path of the checkpoint to resume from. Raises ValueError where it is broken, of another run or stage, or of another model;
        one of an earlier version, which does not say its run, is taken at its word."""
        path = self.folder / self.last_name
        content = load_file(path)
        if missing := [key for key in RESUMED if key not in content]:
            raise self.folder.foreign(self.last_name, f"it holds no {', '.join(missing)}")
        if (origin := content.get("origin", self.origin)) != self.origin:
            raise ValueError(f"{path} was written by {origin}, and this is {self.origin}; bring its own back, or begin again with --fresh")
        shapes = ({name: tensor.shape for name, tensor in state.items()} for state in (content["state_dict"], module.state_dict()))
        if next(shapes) != next(shapes):
            raise self.folder.foreign(self.last_name, "its weights are not those of the model that is trained")
        return str(path)

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
        self.settled = None if module.gating is None else module.gating.binarised_step
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


class SettleGates(pl.Callback):
    """Follows the gates from step to step, so that they become exact as soon as they are decided. Must stand before AverageWeights, which
    begins anew there."""

    def __init__(self, gating: Gating):
        self.gating = gating

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        was = self.gating.is_binarised
        self.gating.follow(bank_of(module), trainer.global_step)
        if self.gating.is_binarised and not was and trainer.is_global_zero:
            patience = self.gating.gates.patience
            say(f"gates: exact from step {trainer.global_step} on, no decision has changed for {patience} steps")

    def state_dict(self) -> dict[str, Any]:
        return self.gating.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gating.load_state_dict(state)


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

    def __init__(self, stage: str, place: str, steps_per_epoch: int):
        """place: which stage of how many it is, for the first line."""
        self.stage, self.place, self.steps = stage, place, steps_per_epoch
        self._first = 0.0
        self._seen = 0

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        self._seen += 1
        if self._seen == 3:  # the first steps warm caches up
            self._first = time.perf_counter()
        if self._seen == 3 + self.MEASURED_STEPS:
            seconds_per_step = (time.perf_counter() - self._first) / self.MEASURED_STEPS
            epochs = f"{trainer.max_epochs} epoch{'s' * (trainer.max_epochs != 1)} of {self.steps} steps"
            left = ((trainer.max_epochs or 0) * self.steps - trainer.global_step) * trainer.accumulate_grad_batches
            if trainer.is_global_zero:
                say(f"{self.stage}: {self.place}, {epochs}, about {minutes(seconds_per_step * left)} left and the validations")

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


class EndWithParent(pl.Callback):
    """Ends the processes of several devices where the one that started them is killed: they would train on, watched by nobody."""

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        parent = multiprocessing.parent_process()
        if trainer.world_size > 1 and parent is not None:
            threading.Thread(target=end_after, args=[parent], daemon=True).start()


def end_after(parent: Any) -> None:
    """Wait until the parent has ended, however it ended, then end this process at once: the others of its group wait for its numbers."""
    parent.join()
    os._exit(1)
