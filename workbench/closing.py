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
from headgates.configs.closing import CLOSINGS
from headgates.data import ranks
from headgates.data.batch import Batch
from headgates.data.parallel import ParallelText
from headgates.gates import HeadMap, HeadSite, fold_mean, reconstruct, resampled, rescale, zero_heads
from headgates.gates.outputs import outputs_of
from headgates.models.sublayers import sublayers
from headgates.workbench.source import BATCH_TOKENS, Source

SENTENCES = 1000


def real_positions(model: Any, site: HeadSite, batch: Any) -> Tensor:
    """(B, L) bool, True at the query positions that are not padding; all queries of a model that writes no
    target are of its source."""
    if hasattr(model, "target_specials"):
        return query_tokens(model, site, batch)
    return batch.source != model.source_specials.padding


@dataclass(eq=False)
class Calibration:
    """A sample of the run's training text, always the same; read when it is first asked for.

    sentences: how many, 0 for all. targets: "reference", or "own" for the model's own greedy translations, so
    that the source side is enough. seed: of `resample`."""

    source: Source
    sentences: int = SENTENCES
    targets: str = "reference"
    seed: int = 1

    @cached_property
    def text(self) -> ParallelText:
        """The sentence pairs. Raises ValueError where there are none."""
        train = self.source.corpus.split("train").first(self.source.train_sentences)
        text = train.sample(self.sentences)
        if not any(line.strip() for line in text.sources):
            raise ValueError(
                "the calibration text is empty; give at least one source line, better a thousand"
            )
        return text

    @cached_property
    def data(self) -> Any:
        """The pairs in pieces. Their translations, where these are the targets, are made with the model as it
        is at that time."""
        text = self.text
        if self.targets == "own":
            text = ParallelText(
                text.sources, self.source.task.outputs(self.source.predictor, text.sources, quick=True)
            )
        return self.source.data(replace(self.source.corpus, train=text), train_sentences=len(text))

    def __iter__(self) -> Iterator[Batch]:
        device = next(self.source.model.parameters()).device
        for batch in self.data.batches("train", BATCH_TOKENS):
            yield batch.to(device)

    def forward(self, model: nn.Module, batch: Batch) -> None:
        self.source.task.loss(model, batch)


OF_STREAM = ("out+ffn", "out+ffn+v")  # of models whose residual stream is known
HOW: dict[str, Callable[..., Any]] = {
    "mean": fold_mean,
    "rescale": rescale,
    "out": reconstruct,
    "out+ffn": partial(reconstruct, sublayers=sublayers),
    "out+ffn+v": partial(reconstruct, sublayers=sublayers, values=True),
}


def check_closing(how: str, model: nn.Module) -> None:
    """Raises ValueError at a way that cannot be taken with this model."""
    if how in OF_STREAM:
        sublayers(model)


def close_heads(model: nn.Module, closed: HeadMap, how: str, calibration: Calibration | None) -> None:
    """Close the heads in place and for good: their columns of W_O are zero, and W_O and its bias are what
    `how` makes of them, an entry of CLOSINGS.

    calibration: None will do for "zero". Raises ValueError at a text that is empty."""
    if how == "zero":
        zero_heads(model, closed)
        return
    assert calibration is not None  # ways that are calibrated are given a text
    if calibration.targets == "own":
        _ = calibration.data  # translated by the model with all its heads
    options = {"ranks": ranks} if ranks.world() > 1 else {}
    HOW[how](model, closed, calibration, calibration.forward, positions=real_positions, **options)


@contextmanager
def closed_heads(
    model: nn.Module, closed: HeadMap, how: str, calibration: Calibration | None
) -> Iterator[None]:
    """The heads are closed within the context; afterwards the model is, bit for bit, as it was. Errors are
    those of `close_heads`."""
    if not CLOSINGS[how].permanent:
        assert calibration is not None
        with resampled(
            model,
            closed,
            calibration,
            calibration.forward,
            positions=real_positions,
            seed=calibration.seed,
        ):
            yield
        return
    outputs = outputs_of(
        model, closed, sublayers(model) if how in OF_STREAM else (), values=how == "out+ffn+v"
    )
    parameters = [parameter for output in outputs.values() for parameter in output.parameters]
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        close_heads(model, closed, how, calibration)
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
