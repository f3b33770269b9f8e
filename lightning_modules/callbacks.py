"""Callbacks of a stage: the gates from step to step and their history, lines on its progress, and an end with
the parent process."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl

from headgates.data.atomic_file import atomic_file
from headgates.gates import GateBank
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.models.progress import minutes, say


class Remembers(pl.Callback):
    """A callback whose attributes named in `remembered` are kept in every checkpoint, so that a resumed stage
    goes on with them."""

    remembered: tuple[str, ...]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class SettleGates(pl.Callback):
    """Follows the gates from step to step, so that they become exact as soon as they are decided. Must stand
    before AverageWeights, which begins anew there."""

    def __init__(self, gating: Gating):
        self.gating = gating

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        was = self.gating.is_binarised
        self.gating.follow(bank_of(module), trainer.global_step)
        if self.gating.is_binarised and not was and trainer.is_global_zero:
            patience = self.gating.gates.patience
            say(
                f"gates: exact from step {trainer.global_step} on, no decision has changed for {patience} "
                "steps"
            )

    def state_dict(self) -> dict[str, Any]:
        return self.gating.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gating.load_state_dict(state)


class GateHistory(Remembers):
    """Writes gates_history.npz: steps (n,), log_alpha (n, heads) and the names of the heads (heads,), with a
    row every `every` steps. Another kind of gate than Hard Concrete has its own position in place of
    log_alpha."""

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
        self.write(trainer, module)

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.write(
            trainer, module
        )  # a stage killed between its last checkpoint and this file trains no epoch more

    def write(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
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
            left = (
                (trainer.max_epochs or 0) * self.steps - trainer.global_step
            ) * trainer.accumulate_grad_batches
            if trainer.is_global_zero:
                say(
                    f"{self.stage}: {self.place}, {epochs}, about {minutes(seconds_per_step * left)} left "
                    "and the validations"
                )

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
