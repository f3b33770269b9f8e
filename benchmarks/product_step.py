"""The product's own training step without Lightning's Trainer, so that it can be timed alone, batch by batch.

What a step is in `fit.py`: forward under autocast and loss (`training_step`), gradients, clipping, AdamW, the
schedule, and what the module does at the end of a batch (every LOG_EVERY steps it reads the loss).
Validation, checkpoints, progress bars and the running average of the weights are left out.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch
from pytorch_lightning.plugins.precision import MixedPrecision, Precision

from headgates.configs.stages import StageConfig
from headgates.data.batch import Batch
from headgates.lightning_modules.module import StageModule
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.tasks.translation import Translation

NO_TRAINER = SimpleNamespace(is_last_batch=False, loggers=[], world_size=1)  # what a step asks of it


class Alone(StageModule):
    """A module that answers in place of Lightning's Trainer."""

    steps_done = 0
    optimizer: torch.optim.Optimizer

    @property
    def global_step(self) -> int:
        return self.steps_done

    @property  # type: ignore[misc]
    def trainer(self) -> Any:
        return NO_TRAINER

    def optimizers(self, *_: Any, **__: Any) -> Any:
        return self.optimizer

    def log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        float(value)  # loggers want a number, which on a GPU waits for it


class ProductStep:
    """One optimiser step a call."""

    def __init__(self, module: Alone, precision: str):
        """precision: "32" or "bf16"."""
        self.module = module.train()
        module.bf16 = precision == "bf16"
        configured = module.configure_optimizers()
        self.optimizer = module.optimizer = configured["optimizer"]
        self.scheduler = configured["lr_scheduler"]["scheduler"]
        device = next(module.parameters()).device.type
        module.sums = module.sums.to(device)  # as the start of an epoch does
        # Lightning's own plugin: its autocast keeps no cache of cast weights, which costs time
        self.plugin = MixedPrecision("bf16-mixed", device) if precision == "bf16" else Precision()

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The step's loss per target token."""
        context: AbstractContextManager[Any] = self.plugin.forward_context()
        with context:
            loss = self.module.training_step(batch, 0)
        self.optimizer.zero_grad()
        loss.backward()
        self.module.on_before_optimizer_step(self.optimizer)
        self.module.configure_gradient_clipping(self.optimizer)
        self.optimizer.step()
        self.scheduler.step()
        self.module.steps_done += 1
        loss = loss.detach()
        self.module.on_train_batch_end({"loss": loss}, batch, 0)
        return loss

    def block(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self(batch)


def product_step(model: Transformer, stage: StageConfig, precision: str) -> ProductStep:
    """The steps of a model without vocabularies, since nothing is encoded or translated here."""
    source_vocab, target_vocab = (
        SimpleNamespace(specials=specials) for specials in (model.source_specials, model.target_specials)
    )
    translator = Translator(model, source_vocab, target_vocab)
    module = Alone(Translation(), translator, stage, seed=1)
    return ProductStep(module.to(model.output.weight.device), precision)
