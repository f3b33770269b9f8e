"""What gates add to the training of any task: loss + lambda * expected open heads.   Voita et al. 2019, section 6.1."""

from typing import Any

from torch import Tensor

from configs.schema import GateConfig
from gates import GateBank, GateWatch, LambdaBudget


class Gating:
    """Gates beside a task, for one stage. The bank is that of the model that trains."""

    def __init__(self, gates: GateConfig, budget: LambdaBudget, *, epochs: int):
        self.gates, self.budget, self.epochs = gates, budget, epochs
        self.watch = GateWatch(budget)
        self.stopped: str | None = None  # why the stage ended before its last epoch
        # a short stage leaves gates that still wander between 0 and 1, and weights used to their noise: the last epochs are without both
        self.binarise_epoch = max(1, epochs - round(gates.settle * epochs))

    def is_binarised(self, epoch: int) -> bool:
        """Whether gates stand at 0 or 1 in this epoch, counted from 0."""
        return epoch >= self.binarise_epoch

    def eligible(self, epoch: int) -> bool:
        """Whether a checkpoint of this epoch may be the stage's result: where gates are to be binarised, none from before."""
        return self.is_binarised(epoch) or self.binarise_epoch == self.epochs or self.stopped is not None

    def penalty(self, bank: GateBank, *, epoch: int, step: int) -> Tensor | None:
        """What the loss of this optimiser step grows by, in nats per unit of the loss; None once gates stand at 0 or 1."""
        return None if self.is_binarised(epoch) else self.budget.loss(bank, step)

    def numbers(self, bank: GateBank, step: int) -> dict[str, float]:
        """What is logged: expected and exact open heads, in all and by kind."""
        expected, exact = bank.open_prob(), bank.open()
        numbers = {
            "gates/penalty": expected.sum(),
            "gates/lambda": self.budget.weight(step),
            "gates/open_heads": float(exact.count()),
        }
        numbers |= {f"gates/expected_{kind}": value for kind, value in expected.by_kind().items()}
        return numbers | {f"gates/open_{kind}": value for kind, value in exact.by_kind().items()}

    def objective(self, bank: GateBank, loss: Tensor) -> Tensor:
        """What the stage minimises, so that the checkpoint chosen is neither unpruned (loss alone) nor empty (heads alone)."""
        return loss + self.budget.lam * bank.open_prob().sum()

    def param_groups(self, bank: GateBank, *, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """The model's weights and the gates, which have a rate of their own and no weight decay."""
        return bank.param_groups(lr=lr, gate_lr=self.gates.lr, weight_decay=weight_decay)
