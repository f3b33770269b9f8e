"""All that a stage does beside its optimiser steps, in one callback, so that its order is that of its
lines."""

import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from headgates.configs.settings import Settings
from headgates.data.ranks import is_first
from headgates.lightning_modules import memory
from headgates.lightning_modules.averaging import WeightAverage
from headgates.lightning_modules.gate_history import GateHistory
from headgates.lightning_modules.generators import generator_states, set_generator_states
from headgates.lightning_modules.held_signals import HeldSignals
from headgates.lightning_modules.loggers import MetricsFile
from headgates.lightning_modules.module import LOG_EVERY, StageModule
from headgates.lightning_modules.remembers import Remembers
from headgates.lightning_modules.stage_record import StageFolder
from headgates.models.checkpoint import previous_checkpoint, save_file


class Watcher(pl.Callback):
    """Looks on while a stage trains."""

    def on_validated(self, trainer: pl.Trainer, module: StageModule) -> None:
        """Called after each validation, while the weights that were validated are still in place. Its time is
        not counted as training."""

    def on_preempted(self) -> None:
        """Called where SIGTERM ends the training, once its last step is saved."""


class StageCallback(Remembers, pl.Callback):
    """Keeps the best weights by the module's `monitor` (lower is better), and all that an exact resume needs:
    after every epoch, within it every so many minutes and optimiser steps (0: never), and where a signal ends
    the training."""

    remembered = ("best", "best_epoch", "losses", "eligible_losses", "seconds", "tokens")

    def __init__(
        self,
        folder: StageFolder,
        module: StageModule,
        settings: Settings,
        *,
        stage: str,
        prefix: str,
        signals: HeldSignals,
        watchers: Sequence[Watcher],
    ):
        self.folder, self.prefix, self.signals, self.watchers = folder, prefix, signals, watchers
        self.minutes, self.every_steps = settings.checkpoint_minutes, settings.checkpoint_steps
        # a checkpoint of another run or stage is not gone on from
        self.origin = {"run_hash": folder.run_hash(), "stage": stage}
        self.average = WeightAverage(module.stage.average)
        self.gating, self.gates = module.gating, module.gates
        self.history = GateHistory(folder / "gates_history.npz")
        self.best = float("inf")
        self.best_epoch = -1
        self.losses: list[float] = []  # full-validation loss, epoch by epoch
        self.eligible_losses: list[float] = []  # of the epochs that may be chosen
        self.seconds = 0.0  # of training: validation and watchers are left out
        self.tokens = 0
        self._begin = self._saved = 0.0  # on the clock: since when time is not counted, and nothing is saved
        self._step = 0  # the optimiser step that was last looked at
        self._counted = 0  # optimiser steps whose tokens are in `tokens`
        self._own: dict[str, Any] | None = None  # what this process takes from a checkpoint

    @property
    def last(self) -> Path:
        return self.folder / f"{self.prefix}last.pt"

    @property
    def previous(self) -> Path:
        """The checkpoint before the last."""
        return previous_checkpoint(self.last)

    # ---------------------------------------------------------------- the state of a checkpoint

    def parts(self) -> dict[str, Any]:
        gates = {"gating": self.gating, "gates": self.gates, "history": self.history} if self.gating else {}
        return {"average": self.average, **gates}

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["origin"] = self.origin
        own = {"generators": generator_states(module.device), "sums": module.running_sums()}
        every: list[Any] = [own] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(every, own)
        checkpoint["ranks"] = every

    def on_load_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        self._own = checkpoint["ranks"][trainer.global_rank]

    # ---------------------------------------------------------------- the beginning

    def on_fit_start(self, trainer: pl.Trainer, module: Any) -> None:
        self.average.place(module.trained)
        # of a stage that had ended before its last epoch, and was killed then
        trainer.should_stop = module.stopped is not None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._begin = self._saved = time.perf_counter()
        self._step = self._counted = trainer.global_step
        module.after_batch = partial(self.after_batch, trainer)
        if self._own is not None and trainer.fit_loop.restarting:
            module.continue_epoch(self._own["sums"])
        for logger in trainer.loggers:
            if isinstance(logger, MetricsFile):
                logger.forget_from(trainer.global_step)
        if self.gating is not None:
            self.history.add(module.gate_bank, trainer.global_step)

    # ---------------------------------------------------------------- a batch

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, index: int) -> None:
        if self._own is not None:  # here: the data loader draws a number before
            set_generator_states(self._own["generators"], module.device)
            self._own = None
        if self.gating is not None and self.gating.binarised_step == trainer.global_step:
            self.average.begin_anew(module.trained, trainer.global_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        if trainer.global_step > self._counted:  # a whole step, of all its micro-batches and ranks
            self._counted = trainer.global_step
            self.tokens += batch.step_tokens
        if self.gating is not None:
            self.history.add(module.gate_bank, trainer.global_step)
        self.average.update(module.trained, trainer.global_step)
        if (index + 1) % memory.RELEASE_EVERY == 0 and module.device.type == "cpu":
            memory.release_memory()

    def after_batch(self, trainer: pl.Trainer) -> None:
        """Called once the batch's row is logged: save the step that has just ended where it is time to, and
        end where a signal asks for it. The last step of an epoch is saved with its validation."""
        if trainer.global_step == self._step:  # between the micro-batches of a step
            return
        self._step = trainer.global_step
        if trainer.is_last_batch or trainer.should_stop:
            return
        ends = self.signals.heard is not None
        due = ends or 0 < 60 * self.minutes <= time.perf_counter() - self._saved
        if trainer.world_size > 1:  # clocks and signals differ, and all processes save together
            look = self._step % LOG_EVERY == 0
            due, ends = trainer.strategy.broadcast((due, ends)) if look else (False, False)
        if due or (self.every_steps and self._step % self.every_steps == 0):
            self.seconds += time.perf_counter() - self._begin
            self.save(trainer)
            self._begin = time.perf_counter()
        if ends:
            self.end()

    # ---------------------------------------------------------------- the end of an epoch

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        self.seconds += time.perf_counter() - self._begin
        self.average.swap(module.trained)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        self.keep_best(trainer, module)
        for watcher in self.watchers:
            watcher.on_validated(trainer, module)
        self.average.swap(module.trained)
        if module.device.type == "cpu":  # on a GPU, tensors are not in this memory
            memory.release_memory()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        self.save(trainer)
        if self.gating is not None:
            self.history.write(module.gate_bank)
        if self.signals.heard is not None:
            self.end()

    def end(self) -> None:
        """Let the signal that was held back end the training, whose last step is saved."""
        if self.signals.heard == signal.SIGTERM:
            for watcher in self.watchers:
                watcher.on_preempted()
        self.signals.re_raise()

    def on_fit_end(self, trainer: pl.Trainer, module: Any) -> None:
        if self.gating is not None:  # a stage killed after its last checkpoint trains no epoch more
            self.history.write(module.gate_bank)

    def keep_best(self, trainer: pl.Trainer, module: StageModule) -> None:
        """Write the weights as validated, and the gates, where they are the best so far."""
        self.losses.append(float(trainer.callback_metrics["val/loss"]))
        value = float(trainer.callback_metrics[module.monitor])
        if not module.eligible:
            return
        self.eligible_losses.append(self.losses[-1])
        if value >= self.best:
            return
        self.best, self.best_epoch = value, trainer.current_epoch
        state = module.model.state_dict()
        gates = {name: state.pop(name) for name in list(state) if name.startswith("head_gates.")}
        content = {"model": state, "gates": gates, "epoch": trainer.current_epoch}
        save_file(self.folder / f"{self.prefix}best.pt", module.task.describe(module.model) | content)
        if hasattr(module.model, "head_gates") and is_first():
            module.gate_bank.save(self.folder / f"{self.prefix}gates.json")

    def save(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.save()  # first: a resumed stage logs what comes after the checkpoint, and that alone
        trainer.save_checkpoint(self.last, weights_only=False)  # False: the optimiser's state too
        self._saved = time.perf_counter()
