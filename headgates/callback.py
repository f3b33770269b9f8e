"""What the callbacks of all trainers share: gates that learn in a training that knows nothing of them, and
the removal of what they close.

The loss and the optimizer of the training stay as they are. Gates have an optimizer of their own
(gates/optimizer.py), and no others see their gradients.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headgates.gates import (
    FFN_KINDS,
    CollectedGradients,
    GateBank,
    GateOptimizer,
    Removed,
    TargetBudget,
    attach,
    detach,
    reconstruct,
    remove,
    save_pruned,
)
from headgates.gates.names import check_numeric
from headgates.gates.pruned_folder import folder_for
from headgates.gates.targets import whole_number

WARMUP, SETTLE = 0.3, 0.3  # shares of all steps
LOOK_EVERY = 20  # steps


class GateCallback:
    """heads, neurons: how many stay. lam: instead, the price of an open head, in the unit of the loss. kinds:
    which get gates (see `attach`). warmup: steps over which the number falls, or the price grows; 30% of all
    steps unless given. lr: of the gates. settle: share of the steps, at the end, in which gates are exactly 0
    or 1 and the weights get used to it. refit: batches without which outputs of what stays are not refitted
    (`reconstruct`) before the removal. save: the folder that `save_pruned` writes.

    After the training `removed` says what went, and `bank` holds the gates; an optimizer that trains on is
    made anew. Raises ValueError as `attach` does, and FileExistsError or OSError at a `save` that holds
    something or cannot be made, when the training begins; as it goes on, ValueError where the loss does not
    reach some gates (`GateBank.cost`), and NotANumber where it stays without a finite gradient. Warns where
    all gates close for a price, or none moves."""

    def __init__(
        self,
        *,
        heads: int | Mapping[str, int] | None = None,
        neurons: int | None = None,
        lam: float | None = None,
        kinds: Iterable[str] | None = None,
        warmup: int | None = None,
        lr: float = 0.05,
        settle: float = SETTLE,
        refit: Iterable[Any] | None = None,
        save: str | Path | None = None,
    ):
        if heads is None and neurons is None and lam is None:
            raise ValueError(
                "nothing says how many heads stay: give heads=24, neurons=768, or lam=0.01, the price of each"
            )
        settle, lr = check_numeric("settle", settle), check_numeric("lr", lr)
        lam = None if lam is None else check_numeric("lam", lam)
        heads, neurons, warmup = (
            whole_number(name, number)
            for name, number in (("heads", heads), ("neurons", neurons), ("warmup", warmup))
        )
        if not 0 <= settle < 1:
            raise ValueError(f"expected settle to be a share of the steps, 0 to below 1, got {settle}")
        if not lr > 0:
            raise ValueError(f"expected lr, the learning rate of the gates, above 0, got {lr}")
        if isinstance(refit, Iterator | Mapping):  # said now, not after hours of training
            raise ValueError(
                f"expected refit to be a list of batches or a loader, which can be read again, got a "
                f"{type(refit).__name__}"
            )
        self.heads, self.neurons, self.lam = heads, neurons, lam
        self.kinds = kinds if kinds is None or isinstance(kinds, str) else tuple(kinds)
        self.warmup, self.lr, self.settle, self.refit, self.save = warmup, lr, settle, refit, save
        self.removed: Removed | None = None
        self.model: nn.Module | None = None  # while it has gates
        self.bank: GateBank
        self.gates: GateOptimizer
        self.collected: CollectedGradients
        self.settle_at = math.inf  # the step from which gates are exact
        self.has_warned = False  # of gates that all closed

    def put_on(self, model: nn.Module, *, seed: int) -> None:
        """Put gates on the model; those of a training that was broken off come off first."""
        if self.save is not None:
            folder_for(self.save)
        if self.model is model:
            detach(model)
        self.bank = attach(
            model,
            "l0",
            self.kinds,
            heads=self.heads,
            neurons=self.neurons,
            lam=self.lam,
            warmup=self.warmup or 0,
        )
        self.model, self.gates = model, GateOptimizer(self.bank, lr=self.lr, seed=seed)
        self.collected = CollectedGradients(())  # until the training begins, which may be at its end

    def begin(self, steps: float) -> None:
        """Begin, or go on, to train gates that were put on. steps: of the optimizer in all, infinite where
        nobody knows."""
        self.collected = CollectedGradients(self.gates.gates)
        if math.isfinite(steps):
            self.settle_at = steps - round(self.settle * steps)
            if self.warmup is None:
                self.bank.budget.warmup = round(WARMUP * steps)
        self.settle_where_due()

    def settle_where_due(self) -> None:
        settled = all(gate.binarised for _, gate in self.bank.items())
        if self.gates.number >= self.settle_at and not settled:  # once: the decision stands
            self.bank.binarise()

    def before_step(self, scaler: Any) -> None:
        """Where the optimizer of the weights steps next. scaler: of the loss, or None."""
        if self.collected.give_back(scale=1.0 if scaler is None else scaler.get_scale()):
            self.gates.step()
            self.settle_where_due()
            due = self.gates.number % LOOK_EVERY == 0 and not self.has_warned
            if due and (reason := self.gates.watch.observe(self.gates.number, self.bank)):
                self.has_warned = True
                warnings.warn(reason, stacklevel=2)

    # ---------------------------------------------------------------- the end

    def end(self) -> None:
        """Refit, remove what the gates close, save, and say what stays. Raises ValueError, with all heads in
        the model and no gates, where these have not made a step."""
        model, bank = self.model, self.bank
        assert model is not None  # a training that ends has begun
        self.collected.release()
        if not self.gates.number:
            detach(model)
            self.model = None
            raise ValueError(
                "the gates have not made a step, so nothing is removed: the training had no step with a "
                "finite gradient, or steps its optimizer past the trainer (in manual optimization take that "
                "of self.optimizers())"
            )
        pairs = [(gate.fixed, gate.exact()) for _, gate in bank.items()]
        if any(fixed is not None and not torch.equal(fixed, exact.float()) for fixed, exact in pairs):
            bank.binarise(False)  # the trainer has put back gates from before
        self.say_if_too_early()
        self.say_if_not_settled()
        closed, words = bank.closed(), bank.summary()
        detach(model)
        self.model = None
        try:
            if self.refit is not None:
                reconstruct(model, closed, self.refit, call)
            self.removed = remove(model, closed)
        except ValueError as error:
            raise ValueError(
                f"{error}. The training is done: once this is mended, hg.remove(model, callback.bank)"
            ) from None
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        print(f"HeadGates: {words} stay; {self.removed.parameters:,} parameters went")
        if self.save is not None:
            print(f"HeadGates: saved in {save_pruned(model, self.save)}")

    def say_if_not_settled(self) -> None:
        """Warn where the training ended before the gates were exactly 0 or 1, and heads go that are still
        partly open."""
        if not self.settle or all(gate.binarised for _, gate in self.bank.items()):
            return
        values, closed = self.bank.values(), self.bank.closed()
        partly = sum(int((values[site][row] > 0).sum()) for site, row in closed.items())
        if partly:
            what = f"training ended after {self.gates.number} steps,"
            if self.gates.number >= self.settle_at:
                what = "the best checkpoint is from"
            warnings.warn(
                f"{what} before the gates settled at exactly 0 or 1 (step {self.settle_at:g}): {partly} of "
                "what goes was still partly open, and the weights have not learned to do without it",
                stacklevel=2,
            )

    def say_if_too_early(self) -> None:
        """Warn where the training ended before the gates came to their number."""
        budget = self.bank.budget
        if not isinstance(budget, TargetBudget):
            return
        over = dict.fromkeys(("heads", "neurons"), 0.0)
        late = 1 + budget.warmup  # the number is aimed at in full
        for group in budget.targets:
            with torch.no_grad():
                error = float(budget.error(self.bank, group, late))  # in heads
            if error > 1:
                (site, price), *_ = budget.limit(self.bank, group).price.items()
                over["neurons" if site.kind in FFN_KINDS else "heads"] += error / price
        if more := " and ".join(f"{number:.1f} {what}" for what, number in over.items() if number):
            warnings.warn(
                f"training ended after {self.gates.number} steps, before the gates came to their number: "
                f"{more} more were expected to be open. Those whose gates are most open stay, but the "
                "weights have not learned to do without the others: train longer, or shorten warmup",
                stacklevel=2,
            )


def call(model: nn.Module, batch: Any) -> None:
    """A forward pass: a batch is a mapping or a tuple of the model's arguments, or its only one."""
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, tuple | list):
        model(*batch)
    else:
        model(batch)
