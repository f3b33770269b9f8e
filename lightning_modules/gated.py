"""The gated task: cross-entropy + lambda * expected open heads.   Voita et al. 2019, section 6.1."""

from typing import Any

from torch import Tensor

from configs.schema import GateConfig, StageConfig
from data.batch import Batch
from gates import GateBank, GateWatch, LambdaBudget
from lightning_modules.translation import TranslationModule
from models.translator import Translator


class GatedModule(TranslationModule):
    """Trains weights and gates of a translator whose model has gates attached. Logs expected and exact open heads by kind."""

    def __init__(
        self, translator: Translator, stage: StageConfig, gates: GateConfig, budget: LambdaBudget, *, seed: int, sample: Any = ((), ())
    ):
        super().__init__(translator, stage, seed=seed, sample=sample)
        self.gates, self.budget = gates, budget
        self.watch = GateWatch(budget)
        self.stopped: str | None = None  # why the stage ended before its last epoch
        # a short stage leaves gates that still wander between 0 and 1, and weights used to their noise: the last epochs are without both
        self.settle_epoch = max(1, stage.epochs - round(gates.settle * stage.epochs))

    @property
    def attached(self) -> GateBank:
        bank = self.bank
        assert bank is not None, "attach gates before training them"
        return bank

    @property
    def settled(self) -> bool:
        return self.current_epoch >= self.settle_epoch

    @property
    def eligible(self) -> bool:
        """Once gates are to settle, a checkpoint from before is not the stage's result."""
        return self.settled or self.settle_epoch == self.stage.epochs or self.stopped is not None

    @property
    def average_begins(self) -> bool:
        return self.current_epoch == self.settle_epoch

    def on_train_epoch_start(self) -> None:
        if self.settled:
            self.attached.binarise()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        self.attached.draw()
        loss = super().training_step(batch, index)
        if self.settled:
            return loss
        # a batch carries the share of the penalty that its tokens are of the step's
        share = batch.target_tokens / batch.step_tokens * self.scale()
        return loss + share * self.budget.loss(self.attached, self.global_step)

    def look(self) -> float:
        loss = super().look()
        self.stopped = self.watch.observe(self.global_step, loss, self.attached)
        if self.stopped:
            self.trainer.should_stop = True
        self.log_gates()
        return loss

    def log_gates(self) -> None:
        bank = self.attached
        expected, exact = bank.open_prob(), bank.open()
        self.log("gates/penalty", expected.sum())
        self.log("gates/lambda", self.budget.weight(self.global_step))
        self.log("gates/open_heads", float(exact.count()))
        for kind, value in expected.by_kind().items():
            self.log(f"gates/expected_{kind}", value)
        for kind, value in exact.by_kind().items():
            self.log(f"gates/open_{kind}", value)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        # what the stage minimises, so that the checkpoint chosen is neither unpruned (loss alone) nor empty (heads alone)
        objective = self.trainer.callback_metrics["val/loss"] + self.budget.lam * self.attached.open_prob().sum()
        self.log("val/objective", objective, sync_dist=True)

    def param_groups(self) -> list[dict[str, Any]]:
        return self.attached.param_groups(lr=self.stage.lr, gate_lr=self.gates.lr, weight_decay=self.stage.weight_decay)
