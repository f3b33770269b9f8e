"""The running average of the weights, which is what is validated and kept (Polyak averaging; Junczys-Dowmunt
et al. 2016 for translation). Gates are left out: their average would lag behind what the weights have already
adapted to."""

import torch
from torch import Tensor, nn

from headgates.lightning_modules.remembers import Remembers
from headgates.lightning_modules.sharded_tensors import like


class WeightAverage(Remembers):
    """average <- decay * average + (1 - decay) * weights after every optimiser step. With decay 0 there is no
    average, and every method does nothing."""

    remembered = ("average", "step", "begin")

    def __init__(self, decay: float):
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.step = 0  # the last one taken in
        self.begin = 0  # the step at which the average began

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        named = model.named_parameters() if self.decay else ()
        return {name: p.data for name, p in named if not name.startswith("head_gates.")}

    def place(self, model: nn.Module) -> None:
        """Begin with the weights, or place the average of a resumed stage where they are."""
        self.average = {
            name: like(self.average[name], weight) if self.average else weight.clone()
            for name, weight in self.weights(model).items()
        }

    def begin_anew(self, model: nn.Module, step: int) -> None:
        if self.begin != step:
            self.average = {name: weight.clone() for name, weight in self.weights(model).items()}
            self.begin = step

    def update(self, model: nn.Module, step: int) -> None:
        """Take the weights after this optimiser step in, once."""
        if step == self.step or not self.average:
            return
        self.step, taken = step, step - self.begin
        decay = min(self.decay, (1 + taken) / (10 + taken))  # short at first, or the start would stay in it
        weights = self.weights(model)
        torch._foreach_lerp_([self.average[name] for name in weights], list(weights.values()), 1 - decay)

    def swap(self, model: nn.Module) -> None:
        """Exchange the weights and their average."""
        for name, weight in self.weights(model).items():
            kept = weight.clone()
            weight.copy_(self.average[name])
            self.average[name].copy_(kept)
