"""What trains the gates of a bank, whoever trains the weights: one sample of noise a step, and an optimizer
of their own.

    gates = GateOptimizer(attach(model, heads=24))
    for batch in batches:
        gates.sample()                        # before each forward pass that learns
        model(**batch).loss.backward()
        gates.step()                          # where the optimizer of the weights steps

The price of the open heads depends on the gates alone. So `step` adds its gradient, and the loss stays as it
is.
"""

import random
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .bank import ENOUGH_STEPS, GateBank
from .budget import GateWatch, NotANumber
from .evaluation_mode import seeded


class GateOptimizer:
    """Moves the gates of a bank by the gradient of the loss, which is in their `.grad`, and by that of
    `bank.loss`: AdamW without weight decay, in float32.

    number: of the optimizer's steps so far. watch: looks at the gates for who asks it. `state_dict` is all
    that a resumed training needs beside the gates."""

    def __init__(self, bank: GateBank, *, lr: float = 0.05, seed: int = 0):
        self.bank, self.seed, self.number, self.watch = bank, seed, 0, GateWatch()
        bank.move = True
        self.gates = [parameter for parameter in bank.parameters() if parameter.requires_grad]
        self.adam = torch.optim.AdamW(self.gates, lr, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
        self._resumed: dict[str, Any] | None = None  # its state, until the gates are where they train
        self._sampled = -1  # the step that was sampled for last

    def sample(self) -> None:
        """Sample xi of all sites, with the same noise for all parts of a step's batch and on all processes:
        that of the seed and the step. What others draw at random stays as it was. Gates are in training mode
        then, whatever the model is in: Lightning leaves one that is loaded in evaluation mode."""
        self.bank.train()
        with seeded({gate.device for gate in self.gates}, self.noise_seed()):
            self.bank.sample(again=self._sampled == self.number)
        self._sampled = self.number

    def noise_seed(self) -> int:
        """Of this step, 32 bits: torch uses no more on CPUs."""
        return random.Random(f"{self.seed} {self.number}").getrandbits(32)

    def step(self) -> None:
        """Move the gates at the end of an optimizer step; their `.grad` is None afterwards. Raises what
        `bank.loss` does."""
        if self._resumed is not None:
            self.adam.load_state_dict(self._resumed)
            self._resumed = None
        frozen = [gate for gate in self.gates if not gate.requires_grad]  # by Lightning's toggle_optimizer
        for gate in frozen:
            gate.requires_grad_(True)
        price = self.bank.loss(self.number)
        if price.requires_grad:
            for gate, gradient in zip(self.gates, torch.autograd.grad(price, self.gates), strict=True):
                gate.grad = gradient if gate.grad is None else gate.grad + gradient
        for gate in frozen:
            gate.requires_grad_(False)
        if not all(gate.binarised for _, gate in self.bank.items()):  # else momentum would move them on
            self.adam.step()
        self.adam.zero_grad()
        self.number += 1

    def state_dict(self) -> dict[str, Any]:
        budget = self.bank.budget
        return {
            "number": self.number,
            "seed": self.seed,
            "adam": self.adam.state_dict() if self._resumed is None else self._resumed,
            "samples": [gate.samples for _, gate in self.bank.items()],
            "budget": budget.state_dict() if hasattr(budget, "state_dict") else {},
            "watch": self.watch.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.number, self.seed, self._resumed = state["number"], state["seed"], state["adam"]
        for (_, gate), samples in zip(self.bank.items(), state["samples"], strict=True):
            gate.samples = samples
        budget, kept = self.bank.budget, state["budget"]
        if kept.get("multipliers", {}).keys() != getattr(budget, "multipliers", {}).keys():
            raise ValueError("the gates learned for another budget")
        if kept:
            budget.load_state_dict(kept)
        self.watch.load_state_dict(state["watch"])


class CollectedGradients:
    """Takes the gates' gradients out of a training that knows nothing of gates, as each backward pass ends.
    So they are not clipped with the weights, and no optimizer of the weights moves the gates."""

    def __init__(self, gates: Iterable[Tensor]):
        self.gates = list(gates)
        self.sums: dict[Tensor, Tensor] = {}  # over the backward passes of a step
        self.lost = 0  # steps in a row that were not finite
        self.handles = [gate.register_post_accumulate_grad_hook(self.take) for gate in self.gates]

    def take(self, gate: Tensor) -> None:
        gradient, gate.grad = gate.grad, None
        assert gradient is not None  # the hook is called when it is there
        self.sums[gate] = self.sums[gate] + gradient if gate in self.sums else gradient

    def give_back(self, *, scale: float = 1.0) -> bool:
        """Put into each gate's `.grad` what was taken since the last call, divided by the scale of the loss:
        the mean over all processes. Returns whether all of it is finite; gates get none of it otherwise.
        Raises NotANumber where that goes on and on."""
        flat = torch.cat([self.sums.pop(gate, torch.zeros_like(gate)) for gate in self.gates]) / scale
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
        if not flat.isfinite().all():
            self.lost += 1
            if self.lost > ENOUGH_STEPS:  # more than the scale of a loss in fp16 needs to come down
                raise NotANumber(
                    f"the gradient of the gates was NaN or infinite in {self.lost} steps in a row: lower the "
                    "learning rate, lengthen its warm-up, or train in float32"
                )
            return False
        self.lost = 0
        for gate, gradient in zip(self.gates, flat.split([len(gate) for gate in self.gates]), strict=True):
            gate.grad = gradient
        return True

    def release(self) -> None:
        """Gradients stay where backward passes put them, as before."""
        for handle in self.handles:
            handle.remove()
