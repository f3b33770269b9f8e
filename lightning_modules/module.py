"""One stage of training a task, with or without gates: the loss per unit, validation on all pairs, a quick
look at a sample.

loss = the task's loss summed over the step's units (target tokens, for translation) / their number, over all
micro-batches and ranks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from headgates.analysis.significance import score
from headgates.configs.stages import StageConfig
from headgates.data.ranks import all_sum
from headgates.gates import GateBank, NotANumber
from headgates.lightning_modules.distilling import Distilling
from headgates.lightning_modules.gating import Gating, StageGates
from headgates.lightning_modules.generators import seed_generators
from headgates.lightning_modules.optimizers import inverse_sqrt, make_optimizer
from headgates.tasks.base import Predictor, Task

LOG_EVERY = 20  # optimiser steps between logged rows


class StageModule(pl.LightningModule):
    """Trains `predictor.model` in place. sample: source and reference lines whose outputs are scored after
    each epoch. gating: what gates add to the loss, for a model that has them. distilling: from which model it
    also learns."""

    def __init__(
        self,
        task: Task,
        predictor: Predictor,
        stage: StageConfig,
        *,
        seed: int,
        sample: tuple[Sequence[str], Sequence[str]] = ((), ()),
        gating: Gating | None = None,
        distilling: Distilling | None = None,
    ):
        super().__init__()
        self.task, self.stage, self.seed, self.sample, self.gating = task, stage, seed, sample, gating
        self.distilling = distilling  # no submodule: its teacher is neither trained nor saved
        self.model: Any = predictor.model
        self.predictor = predictor
        # what trains in the model's place, where its weights are sharded (lightning_modules/sharding.py)
        self.twin: list[Any] = []
        # of the validation batches of an epoch: loss in nats, units that the model predicts, units
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.bf16 = False  # whether it trains in bf16, which who runs it knows
        # what moves the gates: they have a rate of their own, no weight decay, and are not clipped
        self.gates: StageGates | None = None
        if gating is not None:
            self.gates = StageGates(self.gate_bank, lr=gating.gates.lr, seed=seed)
        # since the last logged row: the loss and its units; no buffer: each rank's
        self.sums = torch.zeros(2)
        self._last_logged = 0  # optimiser step
        # called once everything of a batch is done, its logged row too
        self.after_batch: Callable[[], None] | None = None

    @property
    def trained(self) -> Any:
        """The model whose weights the optimiser has: `model`, or its sharded twin."""
        return self.twin[0].model if self.twin else self.model

    @property
    def gate_bank(self) -> GateBank:
        """The bank of a stage with gates."""
        bank: GateBank = self.model.head_gates
        return bank

    @property
    def eligible(self) -> bool:
        """Whether the weights as they are now may be the stage's result."""
        return self.gating is None or self.gating.eligible(self.current_epoch)

    @property
    def stopped(self) -> str | None:
        """Why the stage ended before its last epoch."""
        return None if self.gating is None else self.gating.stopped

    @property
    def monitor(self) -> str:
        """The logged number that checkpoints are chosen by; lower is better."""
        return "val/loss" if self.gating is None else "val/objective"

    # ---------------------------------------------------------------- training

    def on_train_epoch_start(self) -> None:
        # a logged mean never spans epochs
        self.continue_epoch({"sums": torch.zeros(2), "last_logged": self.global_step})

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        # not at the epoch's start: the data loader draws a number after that in an epoch that was come to,
        # before it in a resumed one.
        # noise depends on seed and epoch alone, so a resumed epoch draws what an uninterrupted one would
        if index == 0:
            seed_generators((self.seed * 1000 + self.current_epoch) * 1000 + self.global_rank)

    def training_step(self, batch: Any, index: int) -> Tensor:
        if self.gates is not None:
            self.gates.sample()
        loss = self.twin[0](self.loss, batch) if self.twin else self.loss(self.model, batch)
        units = batch.target_tokens
        if not units:  # of a rank that has no batch left in this step
            loss = loss * 0.0
        self.sums[0] += loss.detach()
        self.sums[1] += units
        # Lightning divides by the micro-batches of a step and averages over ranks; the loss is divided by the
        # step's units already
        return loss / batch.step_tokens * (self.stage.accumulate * self.trainer.world_size)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.gates is not None:
            self.gates.step()

    def loss(self, model: Any, batch: Any) -> Tensor:
        """Nats, summed over the batch's units: a scalar with a gradient."""
        smoothing = self.stage.label_smoothing
        if self.distilling is None:
            return self.task.loss(model, batch, smoothing=smoothing)
        return self.distilling.loss(self.task, model, batch, smoothing=smoothing)

    def on_train_batch_end(self, *_: Any) -> None:
        # once an optimiser step: micro-batches before its last one still see the number of the step before
        is_due = self.global_step % LOG_EVERY == 0 or self.trainer.is_last_batch
        if is_due and self.global_step > self._last_logged:
            self._last_logged = self.global_step
            self.log_training()
        if self.after_batch is not None:
            self.after_batch()

    def running_sums(self) -> dict[str, Any]:
        """What this process has added up since the last logged row, for a checkpoint in the middle of an
        epoch."""
        return {"sums": self.sums, "last_logged": self._last_logged}

    def continue_epoch(self, sums: dict[str, Any]) -> None:
        """Go on from `running_sums`; in the middle of an epoch, which does not start again, from those of a
        checkpoint."""
        self.sums = sums["sums"].to(self.device)
        self._last_logged = sums["last_logged"]
        if self.gating is not None:
            self.gating.begin_epoch(self.gate_bank, epoch=self.current_epoch, step=self.global_step)

    def log_training(self) -> None:
        """Log the mean loss of the steps since the last logged row, and stop at a loss that is not a
        number."""
        total, units = all_sum(self.sums).tolist()
        loss = total / units
        self.sums.zero_()
        self.check(loss)
        rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        numbers = {"epoch": self.current_epoch, "train/loss": loss, "train/learning_rate": rate}
        if self.gating is not None:
            assert self.gates is not None  # a stage with gating has them
            self.gating.stopped = self.gates.watch.observe(self.global_step, self.gate_bank)
            if self.gating.stopped:
                self.trainer.should_stop = True
            numbers |= self.gating.numbers(self.gate_bank, self.global_step)
        for logger in self.trainer.loggers:  # self.log would repeat the numbers until they change
            logger.log_metrics(numbers, self.global_step - 1)  # Lightning numbers steps from 0

    def check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise NotANumber(
                f"the loss is {loss} at step {self.global_step}: lower the stage's lr, raise its "
                "warmup-steps, or try --precision 32"
            )

    # ---------------------------------------------------------------- validation

    def validation_step(self, batch: Any, index: int) -> None:
        if not batch.target_tokens:  # a rank that has none left
            return
        with torch.autocast(
            self.device.type, enabled=False
        ):  # fp32: checkpoints are compared in the third digit of the loss
            loss, right = self.task.counted(self.model, batch)
            self.seen += torch.stack([loss, right, torch.full_like(loss, batch.target_tokens)])

    def on_validation_epoch_end(self) -> None:
        loss, right, units = all_sum(self.seen)
        numbers = self.task.validation(loss / units, right / units)
        self.check(float(numbers["loss"]))  # the last step may have spoilt the weights
        for name, value in numbers.items():
            self.log(f"val/{name}", value, sync_dist=True)  # equal on all ranks already
        self.seen.zero_()
        sources, references = self.sample
        if sources:
            with torch.autocast(self.device.type, enabled=False):
                scored = score(
                    self.task.outputs(self.predictor, sources, quick=True), references, self.task.metrics[:1]
                )
            self.log(f"val/{scored.main_name}", torch.tensor(scored.main), sync_dist=True)
        if self.gating is not None:
            self.log("val/objective", self.gating.objective(self.gate_bank, numbers["loss"]), sync_dist=True)

    # ---------------------------------------------------------------- optimiser

    def configure_optimizers(self) -> Any:
        keep_zero_beginning(self.model)
        gates = set(self.gates.gates) if self.gates is not None else set()
        weights = [p for p in self.trained.parameters() if p.requires_grad and p not in gates]
        if not weights:  # all are frozen, and the stage counts the steps of an optimiser
            weights = [nn.Parameter(torch.zeros(0))]
        groups = [{"params": weights, "lr": self.stage.lr, "weight_decay": self.stage.weight_decay}]
        bf16 = self.bf16 or self.device.type == "cuda"
        optimizer = make_optimizer(self.trained, groups, self.stage, bf16=bf16)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: inverse_sqrt(step, self.stage.warmup_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        if self.stage.clip:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.stage.clip)


def keep_zero_beginning(model: nn.Module) -> None:
    """A decoder that begins with an embedding of 0, as Marian's, which has no place for another, begins so
    after training too."""
    specials = getattr(model, "target_specials", None)
    if specials is None or specials.beginning != specials.padding:
        return
    table, row = model.get_submodule("target_embedding").get_parameter("weight"), specials.beginning
    if table.requires_grad and not table[row].any():
        table.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor(row).to(gradient.device), 0))
