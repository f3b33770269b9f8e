"""A task that is no translation: one label a line, scored by accuracy. What prunes a translator must prune
this too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headgates.analysis.metrics import Floats, Metric
from headgates.data.special_tokens import SpecialTokens
from headgates.data.vocab import Vocab
from headgates.models.transformer import Transformer
from headgates.tasks.translation import Translation

LABELS = 7


def right_of_all(outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> Floats:
    """(N, 2): 1 where the line is right, and 1."""
    return np.array(
        [[ours == theirs, 1] for ours, theirs in zip(outputs, references, strict=True)], dtype=np.float64
    )


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    right_of_all,
    lambda sums: 100 * sums[0] / sums[1],
    lambda sums: 100 * sums[:, 0] / sums[:, 1],
    lambda: "exact match",
)


@dataclass
class Labeller:
    """Says which of LABELS the decoder's first step finds likeliest. It has no search and no target
    vocabulary."""

    model: Transformer
    vocab: Vocab

    @torch.no_grad()
    def label(self, line: str) -> str:
        specials = SpecialTokens()
        logits = self.model(
            torch.tensor([[*self.vocab.encode([line])[0], specials.end]]),
            torch.tensor([[specials.beginning]]),
        )
        return f"label {int(logits[0, 0, :LABELS].argmax())}"


class Labelling(Translation):
    """The text of translation, for another thing to say about it."""

    own_metrics = (ACCURACY,)

    def predict(self, predictor: Any, lines: Sequence[str], *, quick: bool = False) -> list[str]:
        return [predictor.label(line) for line in lines]

    def prediction_settings(self, predictor: Any, *, quick: bool = False) -> dict[str, Any]:
        return {"labels": LABELS}
