"""What a speed report times of a task without search, such as labels: one answer for every line, in the face
of a translator."""

from collections.abc import Sequence
from typing import Any

from headgates.configs.schema import SearchConfig
from headgates.models.line_translator import LineTranslator, Translation
from headgates.tasks.base import Task


class OneAnswer(LineTranslator):
    """A task's predictor with its vocabularies; each answer counts as one token. All lines that are given are
    one batch."""

    def __init__(self, task: Task, predictor: Any, batch_tokens: int):
        self.task, self.predictor, self.search = task, predictor, SearchConfig(beam=1)
        self.source_vocab, self.target_vocab = predictor.source_vocab, predictor.target_vocab
        predictor.batch_tokens = batch_tokens

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        return [[Translation(answer, 0.0, 0.0, 1)] for answer in self.task.predict(self.predictor, lines)]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        raise ValueError(
            "answers without search have no log-probabilities of tokens; compare the answers themselves"
        )
