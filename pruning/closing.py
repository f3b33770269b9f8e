"""What closing a head does to the model: the functions behind configs/closing.py, and the text that they are
calibrated on.

calibration = Calibration(source, sentences=1000)
with closed_heads(source.model, closed, "out", calibration):
    ...                                                   # the model with these heads closed; afterwards it
    is as it was
close_heads(source.model, closed, "out", calibration)  # for good: W_O and b change; `gates.remove` may
follow, or training
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import query_tokens
from headgates.configs.closing import RESAMPLE, ZERO
from headgates.configs.recipe import Recipe
from headgates.configs.stages import DistillConfig
from headgates.data import ranks
from headgates.data.batch import Batch
from headgates.data.text import ParallelText
from headgates.gates import HeadMap, HeadSite, fold_mean, reconstruct, resampled, zero_heads
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.outputs import outputs_of
from headgates.gates.reconstruct import unpruned_copy
from headgates.lab.lab import Run
from headgates.lightning_modules.distilling import Distilling
from headgates.models.sublayers import sublayers
from headgates.records.source import BATCH_TOKENS, Source


def real_positions(model: Any, site: HeadSite, batch: Any) -> Tensor:
    """(B, L) bool, True at the query positions that are not padding; all queries of a model that writes no
    target are of its source."""
    if hasattr(model, "target_specials"):
        return query_tokens(model, site, batch)
    return batch.source != model.source_specials.padding


def calibration_of(run: Run, recipe: Recipe, source: Source) -> "Calibration":
    """The text that a recipe's closing is calibrated on. source: the model that closes, on the run's text."""
    settings = run.settings
    return Calibration(source, settings.calibration_sentences, settings.calibration_targets, seed=recipe.seed)


@dataclass(eq=False)
class Calibration:
    """A sample of the run's training text; read when it is first asked for.

    sentences: how many, 0 for all. targets: "reference", or "own" for the model's own greedy translations, so
    that the source side is enough. seed: of the sample, and of `resample`."""

    source: Source
    sentences: int = 1000
    targets: str = "reference"
    seed: int = 1

    @cached_property
    def text(self) -> ParallelText:
        """The sentence pairs. Raises ValueError where there are none."""
        train = self.source.corpus.split("train").first(self.source.train_sentences)
        text = train.sample(self.sentences, self.seed)
        if not any(line.strip() for line in text.sources):
            raise ValueError(
                "the calibration text is empty; give at least one source line, better a thousand"
            )
        return text

    @cached_property
    def targeted(self) -> ParallelText:
        """The pairs with their targets. The model's translations, where these are the targets, are made with
        the model as it is at that time."""
        if self.targets != "own":
            return self.text
        outputs = self.source.task.outputs(self.source.predictor, self.text.sources, quick=True)
        return ParallelText(self.text.sources, outputs)

    @cached_property
    def data(self) -> Any:
        """The same in pieces."""
        text = self.targeted
        return self.source.data(replace(self.source.corpus, train=text), train_sentences=len(text))

    def __iter__(self) -> Iterator[Batch]:
        device = next(self.source.model.parameters()).device
        for batch in self.data.batches("train", BATCH_TOKENS):
            yield batch.to(device)

    def forward(self, model: nn.Module, batch: Batch) -> None:
        self.source.task.loss(model, batch)


def distill(
    model: nn.Module, closed: HeadMap, calibration: Calibration, *arguments: Any, **options: Any
) -> None:
    """Refit as out+ffn+v, then train all weights for PASSES passes over the same text towards the unpruned
    model's probabilities (KL, token by token), the closed heads' columns of W_O at zero: AdamW, at a rate
    that falls from RATE to 0. Every process takes the same steps. Arguments as `reconstruct`."""
    source, unpruned = calibration.source, unpruned_copy(model, model.parameters())
    teacher = Distilling(unpruned, DistillConfig(weight=1.0))
    HOW[WITHOUT_TRAINING["distill"]](model, closed, calibration, *arguments, **options)
    outputs = outputs_of(model, closed)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    batches = [batch.to(trained[0].device) for batch in calibration.data.batches("train", STEP_TOKENS)]
    order = torch.Generator().manual_seed(calibration.seed)
    falls = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, PASSES * len(batches))
    with evaluation_mode(model), torch.enable_grad():  # without dropout
        for _ in range(PASSES):
            for number in torch.randperm(len(batches), generator=order).tolist():
                batch = batches[number]
                loss = teacher.loss(source.task, model, batch, smoothing=0.0) / batch.target_tokens
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                falls.step()
                with torch.no_grad():
                    for output in outputs.values():
                        output.close()
    optimizer.zero_grad()


PASSES, RATE, STEP_TOKENS = 5, 1e-3, 1000  # of `distill`
WITHOUT_TRAINING = {"distill": "out+ffn+v"}  # a refit that trains -> what it begins with
OF_STREAM = ("out+ffn+v", "distill")  # of models whose residual stream is known
HOW: dict[str, Callable[..., Any]] = {
    "mean": fold_mean,
    "out": reconstruct,
    "out+ffn+v": partial(reconstruct, sublayers=sublayers, values=True),
    "distill": distill,
}


def check_closing(how: str, model: nn.Module) -> None:
    """Raises ValueError at a way that cannot be taken with this model."""
    if how in OF_STREAM:
        sublayers(model)


def close_heads(model: nn.Module, closed: HeadMap, how: str, calibration: Calibration) -> None:
    """Close the heads in place and for good: their columns of W_O are zero, and W_O and its bias are what
    `how` makes of them, of configs/closing.py. Raises ValueError at a text that is empty."""
    if how == ZERO:
        zero_heads(model, closed)
        return
    if calibration.targets == "own":
        _ = calibration.data  # translated by the model with all its heads
    options = {"ranks": ranks} if ranks.world() > 1 else {}
    HOW[how](model, closed, calibration, calibration.forward, positions=real_positions, **options)


@contextmanager
def closed_heads(model: nn.Module, closed: HeadMap, how: str, calibration: Calibration) -> Iterator[None]:
    """The heads are closed within the context; afterwards the model is, bit for bit, as it was. Errors are
    those of `close_heads`."""
    if how == RESAMPLE:
        seed, forward = calibration.seed, calibration.forward
        with resampled(model, closed, calibration, forward, positions=real_positions, seed=seed):
            yield
        return
    parameters = [*model.parameters()]
    if how != "distill":
        stream = sublayers(model) if how in OF_STREAM else ()
        outputs = outputs_of(model, closed, stream, values=how == "out+ffn+v")
        parameters = [parameter for output in outputs.values() for parameter in output.parameters]
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        close_heads(model, closed, how, calibration)
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
