"""The price of an open head in the loss, and a watch that says when training with gates goes wrong and what to change."""

import math
import warnings
from dataclasses import dataclass, field

from torch import Tensor

from .bank import GateBank


@dataclass(frozen=True)
class LambdaBudget:
    """A fixed price per expected open head: loss = cross-entropy per target token + lambda * sum over heads of P(xi > 0).

    lam: nats per target token, per expected open head. It grows linearly from 0 over `warmup` steps: gates first learn which heads work.
    Raises ValueError unless lam is finite and at least 0."""

    lam: float
    warmup: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lam) and self.lam >= 0):
            raise ValueError(f"expected lambda to be a finite number of at least 0, got {self.lam}; try 0.01")
        if self.warmup < 0:
            raise ValueError(f"expected at least 0 warm-up steps, got {self.warmup}")

    def weight(self, step: int) -> float:
        """lambda at optimiser step `step`, counted from 0."""
        return self.lam * min(1.0, (step + 1) / (self.warmup + 1))

    def loss(self, bank: GateBank, step: int) -> Tensor:
        return self.weight(step) * bank.penalty()


class NotANumber(ValueError):
    """The loss turned NaN or infinite."""


@dataclass
class GateWatch:
    """Looks at a gate stage as it runs.   `observe` raises NotANumber, returns a reason to stop, or warns once."""

    budget: LambdaBudget
    patience: int = 200  # steps after the warm-up within which some gate must have moved
    moved: float = 0.2  # a change of log_alpha that counts
    _start: Tensor | None = None
    _warned: set[str] = field(default_factory=set)

    def observe(self, step: int, loss: float, bank: GateBank) -> str | None:
        """The reason to stop the stage, or None. Raises NotANumber when `loss` is not finite."""
        if not math.isfinite(loss):
            raise NotANumber(
                f"the loss is {loss} at step {step}: lower the learning rate of the model or of the gates, lengthen the rate's warm-up, "
                "or train in float32"
            )
        open_heads = bank.open()
        if open_heads.count() == 0:
            return (
                f"all {open_heads.heads_total} gated heads are shut at step {step}: lambda {self.budget.lam:g} is too large for this "
                "model; lower lambda, or lengthen its warm-up"
            )
        probabilities = bank.open_prob().flat().clamp(1e-12, 1 - 1e-12)
        position = (probabilities / (1 - probabilities)).log()  # log_alpha but for a constant, for every kind of gate
        if self._start is None:
            self._start = position
        late = step >= self.budget.warmup + self.patience
        if late and self.budget.lam > 0 and "stall" not in self._warned and float((position - self._start).abs().max()) < self.moved:
            self._warned.add("stall")
            warnings.warn(
                f"no gate has moved by {self.moved} in {step} steps: raise the gates' learning rate (too low now to close one) or lambda",
                stacklevel=2,
            )
        return None
