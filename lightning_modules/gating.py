"""What gates add to the training of any task: loss + the price of the expected open heads (Voita et al. 2019,
section 6.1), and an end of the noise: once gates stand at 0 or 1 the rest of the stage trains weights
alone."""

import numpy as np
from torch import Tensor

from headgates.configs.stages import GateConfig
from headgates.gates import FFN_KINDS, KINDS, GateBank, GateOptimizer, LambdaBudget, TargetBudget
from headgates.lightning_modules.remembers import Remembers


class StageGates(GateOptimizer):
    """The gates' optimizer within a stage."""

    def noise_seed(self) -> int:
        return int(np.random.SeedSequence([self.seed, self.number]).generate_state(1)[0])


class Gating(Remembers):
    """Gates beside a task, for one stage. The bank is that of the model that trains, with its budget.

    `state_dict` is all that a resumed stage needs beside the bank and its optimizer."""

    remembered = ("stopped", "binarised_step")

    def __init__(
        self,
        gates: GateConfig,
        bank: GateBank,
        *,
        epochs: int,
    ):
        self.gates, self.epochs = gates, epochs
        self.budget: LambdaBudget | TargetBudget = bank.budget
        self.stopped: str | None = None  # why the stage ended before its last epoch
        # a short stage leaves gates that still wander between 0 and 1, and weights used to their noise: its
        # end is without both. The latest epoch to begin that; the number of epochs: never
        self.binarise_epoch = first_settled(epochs, gates.settle)
        self.binarised_step: int | None = None  # optimiser steps taken when the gates became exact

    @property
    def is_binarised(self) -> bool:
        """Whether gates stand at 0 or 1."""
        return self.binarised_step is not None

    def eligible(self, epoch: int) -> bool:
        """Whether a checkpoint of this epoch may be the stage's result: where gates are to be binarised, none
        from before; where a number of heads is aimed at, none from before it was reached."""
        if self.is_binarised or self.stopped is not None or epoch == self.epochs - 1:
            return True
        aimed = not isinstance(self.budget, TargetBudget) or max(map(abs, self.budget.errors.values())) <= 1
        return self.binarise_epoch == self.epochs and aimed

    def begin_epoch(self, bank: GateBank, *, epoch: int, step: int) -> None:
        """Make the gates exact where the share of epochs says so; in a stage that is resumed, where they
        were."""
        if self.is_binarised:
            bank.binarise()
        elif epoch >= self.binarise_epoch:
            self.binarise(bank, step)

    def binarise(self, bank: GateBank, step: int) -> None:
        bank.binarise()
        self.binarised_step = step

    def numbers(self, bank: GateBank, step: int) -> dict[str, float]:
        """What is logged: expected and exact open heads and neurons, in all and by kind."""
        expected, exact = bank.open_prob(), bank.open()
        numbers = {
            "gates/penalty": bank.cost_of(expected),
            "gates/lambda": self.budget.weight(step),
            "gates/open_heads": float(exact.select(KINDS).count()),
        }
        if len(neurons := exact.select(FFN_KINDS)):
            numbers["gates/open_neurons"] = float(neurons.count())
        numbers |= {f"gates/expected_{kind}": value for kind, value in expected.by_kind().items()}
        return numbers | {f"gates/open_{kind}": value for kind, value in exact.by_kind().items()}

    def objective(self, bank: GateBank, loss: Tensor) -> Tensor:
        """What the stage minimises, so that the checkpoint chosen is neither unpruned (loss alone) nor empty
        (heads alone); with a number of heads given, the loss."""
        return (
            loss + self.budget.lam * bank.cost_of(bank.open_prob())
            if isinstance(self.budget, LambdaBudget)
            else loss
        )


def first_settled(epochs: int, settle: float) -> int:
    """The epoch, counted from 0, from which on the gates of a stage stand at 0 or 1; `epochs` for none."""
    return max(1, epochs - round(settle * epochs))
