"""The price of an open head in the loss: a fixed lambda, or a Lagrange multiplier that leads to a number of
heads; and a watch that says when gates do not learn."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .bank import GateBank
from .headmap import FFN_KINDS, HeadSite, is_of
from .names import check_numeric


@dataclass
class LambdaBudget:
    """A fixed price per expected open head: loss = cross-entropy per target token + lambda * sum over heads
    of P(xi > 0). A neuron counts as a part of a head (`GateBank.penalty`).

    lam: nats per target token, per expected open head. It grows linearly from 0 over `warmup` steps: gates
    first learn which heads work. Raises ValueError unless lam is finite and at least 0."""

    lam: float
    warmup: int = 0

    def __post_init__(self) -> None:
        check_numeric("lam", self.lam)
        check_numeric("warmup", self.warmup, whole=True, least=0)
        if not (math.isfinite(self.lam) and self.lam >= 0):
            raise ValueError(f"expected lambda to be a finite number of at least 0, got {self.lam}; try 0.01")

    def weight(self, step: int) -> float:
        """lambda at optimiser step `step`, counted from 0."""
        return self.lam * min(1.0, (step + 1) / (self.warmup + 1))

    def loss(self, bank: GateBank, step: int) -> Tensor:
        return self.weight(step) * bank.penalty()


@dataclass(frozen=True)
class Limit:
    """What the open heads and neurons of some sites may cost together.

    price: site -> the cost of one of its heads or neurons; sites that it lacks cost nothing. total: in the
    unit of the prices, whatever that is; multipliers are per such unit, so one in which a head costs about 1
    suits the default stiffness and rate. Raises ValueError at a number below 0 or not finite."""

    price: Mapping[HeadSite, float]
    total: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(number) and number >= 0 for number in (self.total, *self.price.values())):
            raise ValueError(f"expected a total and prices of at least 0, got {self.total} and {self.price}")

    @property
    def whole(self) -> float:
        """The cost of all."""
        return sum(price * site.heads for site, price in self.price.items())


def limit_of(bank: GateBank, word: str, count: int) -> Limit:
    """The limit of so many open heads or neurons of the kinds that a word stands for, each at the mean price
    of these in the bank: 1 for heads."""
    sites = [site for site in bank.sites if is_of(site.kind, word)]
    price = sum(bank.prices[site] * site.heads for site in sites) / sum(site.heads for site in sites)
    return Limit(dict.fromkeys(sites, price), count * price)


class TargetBudget:
    """A price per expected open head that rises and falls until as many are open as the target says.

    The augmented Lagrangian of expected cost s = target t (Wang et al. 2020, arXiv:1910.04732; Xia et al.
    2022, arXiv:2204.00408): loss = cross-entropy + sum over groups of m (s - t) + stiffness (s - t)^2 / 2,
    and m <- m + rate (s - t) after each step. t falls linearly from the cost of all to the target over
    `warmup` steps. `loss` takes the step of m where it is first asked for the next optimiser step.
    targets: a number of heads in all; or by kind or word for several, such as {"heads": 24, "ffn": 768}, each
    a number, or a `Limit` on what they cost, with a multiplier of its own. Numbers of neurons are counted in
    heads, so the rates below serve both. m: nats per target token and head; stiffness: m per head; rate: m
    per head and step. Raises ValueError unless these are above 0 and warmup is at least 0."""

    def __init__(
        self,
        targets: int | Mapping[str, int | Limit],
        warmup: int = 0,
        *,
        stiffness: float = 0.1,
        rate: float = 0.0002,
    ):
        check_numeric("warmup", warmup, whole=True, least=0)
        if not (stiffness > 0 and rate > 0):
            raise ValueError(f"expected stiffness and rate above 0, got {stiffness=}, {rate=}")
        self.targets: dict[str, int | Limit] = {"": targets} if isinstance(targets, int) else dict(targets)
        self.warmup, self.stiffness, self.rate = warmup, stiffness, rate
        self.multipliers = dict.fromkeys(self.targets, 0.0)
        self.errors = dict.fromkeys(self.targets, 0.0)  # s - t as last seen, for the log
        self.seen: int | None = None  # the optimiser step that was last priced

    def limit(self, bank: GateBank, group: str) -> Limit:
        given = self.targets[group]
        return given if isinstance(given, Limit) else limit_of(bank, group, given)

    def target(self, bank: GateBank, group: str, step: int) -> float:
        """Expected cost that is aimed at, at optimiser step `step`, counted from 0."""
        limit = self.limit(bank, group)
        return limit.whole + (limit.total - limit.whole) * min(1.0, (step + 1) / (self.warmup + 1))

    def weight(self, step: int) -> float:
        """The mean price of a head over the groups, as the last step left it."""
        prices = [self.multipliers[group] + self.stiffness * self.errors[group] for group in self.targets]
        return sum(prices) / len(prices)

    def error(self, bank: GateBank, group: str, step: int) -> Tensor:
        """s - t, with a gradient."""
        return bank.cost(self.limit(bank, group).price) - self.target(bank, group, step)

    def loss(self, bank: GateBank, step: int) -> Tensor:
        if self.seen not in (None, step):
            self.update(bank, step - 1)
        self.seen = step
        pairs = [(self.multipliers[group], self.error(bank, group, step)) for group in self.targets]
        return torch.stack([m * error + self.stiffness / 2 * error.square() for m, error in pairs]).sum()

    def update(self, bank: GateBank, step: int) -> None:
        """The multipliers' step of ascent, after the optimiser's step `step`."""
        with torch.no_grad():
            for group in self.targets:
                self.errors[group] = float(self.error(bank, group, step))
                self.multipliers[group] += self.rate * self.errors[group]

    def state_dict(self) -> dict[str, Any]:
        return {"multipliers": dict(self.multipliers), "errors": dict(self.errors), "seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.multipliers, self.errors = dict(state["multipliers"]), dict(state["errors"])
        self.seen = state["seen"]


class NotANumber(ValueError):
    """The loss, or its gradient, turned NaN or infinite."""


@dataclass
class GateWatch:
    """Looks at gates as they learn.   `observe` returns a reason to stop, or warns once."""

    patience: int = 200  # steps after the warm-up within which some gate must have moved
    moved: float = 0.2  # a change of log_alpha that counts
    _start: Tensor | None = None
    _warned: bool = False

    def observe(self, step: int, bank: GateBank) -> str | None:
        """The reason to stop, or None. bank: one with a budget."""
        budget: LambdaBudget | TargetBudget = bank.budget
        # log_alpha but for a constant, for every kind of gate
        position = bank.open_prob().flat().logit(eps=1e-12)
        if self._start is None:
            self._start = position
        if isinstance(budget, TargetBudget):
            if all(abs(error) <= 1 for error in budget.errors.values()):
                return None  # they have come to their number
        elif budget.lam == 0:
            return None  # no price that is too large, or too small
        elif (open_heads := bank.open()).count() == 0:
            neurons = " and neurons" * bool(open_heads.select(FFN_KINDS))
            return (
                f"all {open_heads.heads_total} gated heads{neurons} are closed at step {step}: lambda "
                f"{budget.lam:g} is too large for this model; lower lambda, or lengthen its warm-up"
            )
        late = step >= budget.warmup + self.patience
        if late and not self._warned and float((position - self._start).abs().max()) < self.moved:
            self._warned = True
            warnings.warn(
                f"no gate has moved by {self.moved} in {step} steps: raise the gates' learning rate (too "
                f"low now to close one){' or lambda' * isinstance(budget, LambdaBudget)}",
                stacklevel=2,
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "warned": self._warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._start, self._warned = state["start"], state["warned"]
