"""The translation task: label-smoothed loss per target token, validation on all pairs, greedy BLEU on a sample.

loss = sum over the step's target tokens of cross-entropy / number of those tokens, over all micro-batches and ranks of the step.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import sacrebleu
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.text import Perplexity

from configs.schema import StageConfig
from data.batch import Batch
from gates import GateBank, NotANumber
from lightning_modules.optimizers import make_optimizer
from lightning_modules.schedules import constant, inverse_sqrt
from models.loss import linear_cross_entropy
from models.transformer import Transformer
from models.translator import Translator

LOOK_EVERY = 20  # optimiser steps between logged rows


class TranslationModule(pl.LightningModule):
    """Trains `translator.model` in place. `sample`: source and reference lines translated greedily after each epoch."""

    def __init__(self, translator: Translator, stage: StageConfig, *, seed: int, sample: tuple[Sequence[str], Sequence[str]] = ((), ())):
        super().__init__()
        self.seed = seed
        self.model: Transformer = translator.model
        self._translator = [translator]  # in a list: not a submodule
        self.stage, self.sample = stage, sample
        padding = self.model.target_specials.padding
        self.perplexity = Perplexity(ignore_index=padding)
        self.accuracy = MulticlassAccuracy(self.model.target_vocab, ignore_index=padding, average="micro", validate_args=False)
        self.train_loss = MeanMetric(nan_strategy="disable")  # its default drops NaN before it can be seen
        self._looked = 0

    @property
    def eligible(self) -> bool:
        """Whether the weights as they are now may be the stage's result."""
        return True

    @property
    def average_begins(self) -> bool:
        """Whether the running average of the weights begins anew with this epoch."""
        return False

    @property
    def bank(self) -> GateBank | None:
        bank = getattr(self.model, "head_gates", None)
        assert bank is None or isinstance(bank, GateBank)
        return bank

    @property
    def translator(self) -> Translator:
        return self._translator[0]

    def cross_entropy(self, batch: Batch) -> Tensor:
        """Label-smoothed cross-entropy in nats, summed over the batch's target tokens."""
        memory, bias = self.model.encode(batch.source)
        hidden = self.model.decode(memory, bias, batch.target_in)
        padding, smoothing = self.model.target_specials.padding, self.stage.label_smoothing
        return linear_cross_entropy(hidden, self.model.output.weight, batch.target_out, padding=padding, smoothing=smoothing)

    def scale(self) -> float:
        """Lightning divides by the micro-batches of a step and averages over ranks; the loss is divided by the step's tokens already."""
        return self.stage.accumulate * self.trainer.world_size

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss = self.cross_entropy(batch)
        tokens = batch.target_tokens
        self.train_loss.update(loss.detach() / tokens, tokens)
        return loss / batch.step_tokens * self.scale()

    def on_train_batch_end(self, *_: Any) -> None:
        # once an optimiser step: its later micro-batches still see the number of the step before
        if self.global_step % LOOK_EVERY == 0 and self.global_step > self._looked:
            self._looked = self.global_step
            self.look()

    def look(self) -> float:
        """Log, and stop at a loss that is not a number; every LOOK_EVERY optimiser steps. Gives the mean loss since the last look."""
        loss = float(self.train_loss.compute())
        self.train_loss.reset()
        self.check(loss)
        self.log("train/loss", loss)
        self.log("train/learning_rate", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return loss

    def check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise NotANumber(
                f"the loss is {loss} at step {self.global_step}: lower the stage's lr, raise its warmup-steps, or try --precision 32"
            )

    def validation_step(self, batch: Batch, index: int) -> None:
        with torch.autocast(self.device.type, enabled=False):
            logits = self.model(batch.source, batch.target_in)  # fp32: checkpoints are compared in its third digit
        self.perplexity.update(logits, batch.target_out)
        self.accuracy.update(logits.flatten(0, 1), batch.target_out.flatten())

    def on_validation_epoch_end(self) -> None:
        perplexity = self.perplexity.compute()
        self.check(float(perplexity.log()))  # a stage may be shorter than LOOK_EVERY
        self.log("val/loss", perplexity.log(), sync_dist=True)  # equal on all ranks already
        self.log("val/perplexity", perplexity, sync_dist=True)
        self.log("val/token_accuracy", self.accuracy.compute(), sync_dist=True)
        self.perplexity.reset()
        self.accuracy.reset()
        sources, references = self.sample
        if sources:
            with torch.autocast(self.device.type, enabled=False):
                hypotheses = self.translator.translate(sources, beam=1)
            bleu = sacrebleu.corpus_bleu(hypotheses, [list(references)], force=True).score
            self.log("val/bleu", torch.tensor(bleu), sync_dist=True)

    def param_groups(self) -> list[dict[str, Any]]:
        weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return [{"params": weights, "lr": self.stage.lr, "weight_decay": self.stage.weight_decay, "name": "model"}]

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.model, self.param_groups(), self.stage)

        def warm(step: int) -> float:
            return inverse_sqrt(step, self.stage.warmup_steps)

        factors: list[Callable[[int], float]] = [warm if group["name"] == "model" else constant for group in optimizer.param_groups]
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        # gates are not clipped: the norm of the model's gradient says nothing about them
        if self.stage.clip:
            weights = [p for group in optimizer.param_groups if group["name"] == "model" for p in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.stage.clip)

    def on_train_batch_start(self, batch: Batch, index: int) -> None:
        # not at the epoch's start: the data loader draws a number after that in an epoch that was come to, before it in a resumed one.
        # noise depends on seed and epoch alone, so a resumed epoch draws what an uninterrupted one would
        if index == 0:
            torch.manual_seed((self.seed * 1000 + self.current_epoch) * 1000 + self.global_rank)
