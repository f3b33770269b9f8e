"""What a stage leaves on the disk while it trains: its best weights, and from time to time all that an exact
resume needs."""

import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from headgates.data.atomic_file import atomic_file
from headgates.data.ranks import is_first, world
from headgates.lightning_modules.callbacks import Remembers
from headgates.lightning_modules.generators import generator_states, set_generator_states
from headgates.lightning_modules.held_signals import HeldSignals
from headgates.lightning_modules.loggers import MetricsFile
from headgates.lightning_modules.module import LOG_EVERY, StageModule
from headgates.models.checkpoint import check_bytes, load_file, save_file
from headgates.workbench.folder import RunFolder, previous_checkpoint

RESUMED = (
    "state_dict",
    "optimizer_states",
    "lr_schedulers",
    "loops",
    "callbacks",
    "epoch",
    "global_step",
)  # of a whole last.pt


class WholeFiles(TorchCheckpointIO):
    """Lightning's checkpoints, written whole or not at all; the one before stays beside it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with atomic_file(path, previous=previous_checkpoint(path)) as file:
            torch.save(checkpoint, file)


class Checkpoints(Remembers):
    """Writes the best weights by `monitor` (lower is better) and all that an exact resume needs: after every
    epoch, and within it every `minutes`, every `steps` optimiser steps (0: never), and where a signal ends
    the training.

    Both are plain tensors, written to a temporary name and renamed. Must stand before AverageWeights in the
    list of callbacks: the best weights are the averaged ones."""

    remembered = (
        "best",
        "best_epoch",
        "losses",
        "eligible_losses",
        "seconds",
        "tokens",
        "steps",
        "stopped",
        "settled",
    )

    def __init__(
        self,
        folder: RunFolder,
        *,
        stage: str,
        best: str,
        last: str,
        monitor: str,
        minutes: float,
        steps: int,
        signals: HeldSignals,
    ):
        self.origin = {
            "run_hash": folder.run_hash(),
            "stage": stage,
        }  # what goes on from another's checkpoint would be neither run
        self.folder, self.best_name, self.last_name, self.monitor = folder, best, last, monitor
        self.minutes, self.every_steps, self.signals = minutes, steps, signals
        self.best = float("inf")
        self.best_epoch = -1
        self.losses: list[float] = []  # full-validation loss, epoch by epoch
        self.eligible_losses: list[
            float
        ] = []  # of the epochs that may be chosen: without those under the noise of gates
        self.seconds = 0.0  # of training, validation and BLEU samples left out
        self.tokens = 0
        self.steps = 0
        self.stopped: str | None = None  # why the stage ended before its last epoch
        self.settled: int | None = None  # optimiser steps taken when its gates became exact
        self._begin = self._saved = (
            0.0  # seconds on the clock, since when time is not counted, and nothing is saved
        )
        self._step = 0  # the optimiser step that was last looked at
        self._counted = 0  # optimiser steps whose tokens are in `tokens`
        self._own: dict[str, Any] | None = None  # what this process brings along from a checkpoint

    @property
    def previous(self) -> Path:
        """The checkpoint before the last."""
        return previous_checkpoint(self.folder / self.last_name)

    # ---------------------------------------------------------------- what is resumed

    def to_resume(self, module: pl.LightningModule) -> str | None:
        """The path of the checkpoint to go on from: the last, or with a warning the one before where the last
        cannot be used; None where there is none. Raises ValueError where there is none that can be used, with
        what is wrong with the
        last."""
        last = self.folder / self.last_name
        there = [path for path in (last, self.previous) if path.is_file()]
        wrong = [] if there[:1] != [self.previous] else [f"there is no {last}"]
        for path in there:
            try:
                step = self.check(path, module)
            except ValueError as error:
                wrong.append(str(error))
                continue
            if wrong:
                warnings.warn(f"{wrong[0]}. Going on from {path.name}, after step {step}", stacklevel=2)
            return str(path)
        if wrong:
            raise ValueError(wrong[0])
        return None

    def check(self, path: Path, module: pl.LightningModule) -> int:
        """The number of optimiser steps after which a checkpoint was written. Raises ValueError where it is
        broken, of another run or stage, or of another model; one of an earlier version, which does not say
        its run, is taken at its
        word."""
        check_bytes(path)
        content = load_file(path)
        if missing := [key for key in RESUMED if key not in content]:
            raise self.folder.foreign(path.name, f"it holds no {', '.join(missing)}")
        if (origin := content.get("origin", self.origin)) != self.origin:
            raise ValueError(
                f"{path} was written by {origin}, and this is {self.origin}; bring its own back, or begin "
                "again with --fresh"
            )
        if (ranks := len(content.get("ranks", []))) not in (0, world()):
            by = f"{ranks} process{'es' * (ranks != 1)}"
            raise ValueError(
                f"{path} was written by {by}, and now there are {world()}: order and noise would be those of "
                "neither run; --resume with "
                f"{ranks}, or begin again with --fresh"
            )
        shapes = (
            {name: tensor.shape for name, tensor in state.items()}
            for state in (content["state_dict"], module.state_dict())
        )
        if next(shapes) != next(shapes):
            raise self.folder.foreign(path.name, "its weights are not those of the model that is trained")
        return int(content["global_step"])

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert isinstance(module, StageModule)
        checkpoint["origin"] = self.origin
        own = {"generators": generator_states(module.device), "sums": module.running_sums()}
        checkpoint["ranks"] = of_all_ranks(own, trainer)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        ranks = checkpoint.get(
            "ranks", []
        )  # earlier versions had none, and went on from the end of an epoch alone
        self._own = ranks[trainer.global_rank] if trainer.global_rank < len(ranks) else None

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, StageModule)
        trainer.should_stop = (
            module.stopped is not None
        )  # in a stage that had ended before its last epoch, and was killed then

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, StageModule)
        self._begin = self._saved = time.perf_counter()
        self._step = self._counted = trainer.global_step
        module.after_batch = partial(self.after_batch, trainer)
        if self._own is not None and trainer.fit_loop.restarting:
            module.continue_epoch(self._own["sums"])
        for logger in trainer.loggers:
            if isinstance(logger, MetricsFile):
                logger.forget_from(trainer.global_step)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int
    ) -> None:
        if self._own is not None:  # here: the data loader draws a number before
            set_generator_states(self._own["generators"], module.device)
            self._own = None

    # ---------------------------------------------------------------- what is written

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        if trainer.global_step > self._counted:  # a whole step, of all its micro-batches and ranks
            self._counted = trainer.global_step
            self.tokens += batch.step_tokens

    def after_batch(self, trainer: pl.Trainer) -> None:
        """Save the step that has just ended where it is time to, and end where a signal asks for it. The last
        step of an epoch is saved with its validation."""
        if trainer.global_step == self._step:  # between the micro-batches of a step
            return
        self._step = trainer.global_step
        if trainer.is_last_batch or trainer.should_stop:
            return
        ends = self.signals.heard is not None
        due = ends or 0 < 60 * self.minutes <= time.perf_counter() - self._saved
        if trainer.world_size > 1:  # clocks and signals differ, and all processes save together
            due, ends = (
                trainer.strategy.broadcast((due, ends)) if self._step % LOG_EVERY == 0 else (False, False)
            )
        if due or (self.every_steps and self._step % self.every_steps == 0):
            self.seconds += time.perf_counter() - self._begin
            self.save(trainer)
            self._begin = time.perf_counter()
        if ends:
            self.signals.let_through()

    def save(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                # before the checkpoint: a resumed stage logs what comes after it, and nothing that came
                # before
                logger.save()
        trainer.save_checkpoint(
            self.folder / self.last_name, weights_only=False
        )  # False: the optimiser's state too
        self._saved = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.seconds += time.perf_counter() - self._begin

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, StageModule)
        self.losses.append(float(trainer.callback_metrics["val/loss"]))
        self.eligible_losses += [self.losses[-1]] * module.eligible
        value = float(trainer.callback_metrics[self.monitor])
        if module.eligible and value < self.best:
            self.best, self.best_epoch = value, trainer.current_epoch
            state = module.model.state_dict()
            gates = {name: state.pop(name) for name in list(state) if name.startswith("head_gates.")}
            bank = module.bank
            described = module.task.describe(module.model)
            save_file(
                self.folder / self.best_name,
                {**described, "model": state, "gates": gates, "epoch": trainer.current_epoch},
            )
            if bank is not None and is_first():
                bank.save(self.folder / self.best_name.replace("best.pt", "gates.json"))

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, StageModule)
        self.steps, self.stopped = trainer.global_step, module.stopped
        self.settled = None if module.gating is None else module.gating.binarised_step
        self.save(trainer)
        if self.signals.heard is not None:
            self.signals.let_through()


def of_all_ranks(own: dict[str, Any], trainer: pl.Trainer) -> list[dict[str, Any]]:
    """What every process holds, by rank."""
    every: list[Any] = [own] * trainer.world_size
    if trainer.world_size > 1:
        torch.distributed.all_gather_object(every, own)
    return every
