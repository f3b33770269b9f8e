"""Lines on the progress of a stage."""

import time
from typing import Any

import pytorch_lightning as pl

from headgates.gates import FFN_KINDS, KINDS
from headgates.lightning_modules.module import StageModule
from headgates.models.progress import minutes, say


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
            epochs = f"{trainer.max_epochs} epoch{'s' * (trainer.max_epochs != 1)} of {self.steps} steps"
            steps = (trainer.max_epochs or 0) * self.steps - trainer.global_step
            left = minutes(seconds_per_step * steps * trainer.accumulate_grad_batches)
            if trainer.is_global_zero:
                say(f"{self.stage}: {epochs}, about {left} left, and the validations")

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(module, StageModule)
        metric = module.task.metrics[0].name
        logged = trainer.callback_metrics
        numbers = {name: float(logged[f"val/{name}"]) for name in ("loss", metric) if f"val/{name}" in logged}
        if module.gating is not None:
            opened = module.gate_bank.open()
            parts = {"open heads": opened.select(KINDS), "open neurons": opened.select(FFN_KINDS)}
            numbers |= {name: part.count() for name, part in parts.items() if len(part)}
        text = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
        say(f"{self.stage}: epoch {trainer.current_epoch + 1} of {trainer.max_epochs}: {text}")
