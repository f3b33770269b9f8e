"""The running average of the weights, which is what is validated and kept (Polyak averaging; Junczys-Dowmunt
et al. 2016 for translation).

Gates are left out: their average would lag behind what the weights have already adapted to.
"""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from headgates.lightning_modules.callbacks import Remembers
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.sharding import like


class AverageWeights(Remembers):
    """average <- decay * average + (1 - decay) * weights after every optimiser step, swapped in while the
    model is validated."""

    remembered = ("average", "step", "begin")

    def __init__(self, decay: float):
        if not 0 <= decay < 1:
            raise ValueError(f"expected an averaging decay in [0, 1), got {decay}")
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.step = 0  # the last one taken in
        self.begin = 0  # the step at which the average began

    def weights(self, module: pl.LightningModule) -> dict[str, Tensor]:
        assert isinstance(module, StageModule)
        return {
            name: p.data
            for name, p in module.trained.named_parameters()
            if not name.startswith("head_gates.")
        }

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        weights = self.weights(module)
        if self.average:  # a resumed run brought it along
            self.average = {name: like(self.average[name], weight) for name, weight in weights.items()}
        else:
            self.average = {name: weight.clone() for name, weight in weights.items()}

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        assert isinstance(module, StageModule)
        if module.average_begins and self.begin != trainer.global_step:
            self.average = {name: weight.clone() for name, weight in self.weights(module).items()}
            self.begin = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        taken = self.step - self.begin
        decay = min(self.decay, (1 + taken) / (10 + taken))  # short at first, or the start would stay in it
        weights = self.weights(module)
        torch._foreach_lerp_([self.average[name] for name in weights], list(weights.values()), 1 - decay)

    def swap(self, module: pl.LightningModule) -> None:
        for name, weight in self.weights(module).items():
            kept = weight.clone()
            weight.copy_(self.average[name])
            self.average[name].copy_(kept)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.swap(module)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.swap(module)
