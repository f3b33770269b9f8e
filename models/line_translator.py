"""What everything that translates lines has in common: a `Translator`, and an exported folder that is open."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # so that a stream of lines needs neither torch nor a tokenizer before its first line
    from configs.schema import SearchConfig
    from data.vocab import Vocabulary


@dataclass(frozen=True)
class Translation:
    """One of a line's n best: text, log probability in nats (end included), the score it was ranked by, its number of tokens."""

    text: str
    log_prob: float
    score: float
    tokens: int


class LineTranslator(Protocol):
    """A model with its vocabularies and search settings, whatever runs it."""

    search: "SearchConfig"

    @property
    def source_vocab(self) -> "Vocabulary": ...

    @property
    def target_vocab(self) -> "Vocabulary": ...

    def translate(self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None) -> list[str]:
        """One line for every line; an empty line stays empty. What is None is as `search` says."""

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        """The `beam` best translations of every line, best first. Raises ValueError at a beam below 1."""

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Natural-log probabilities of every target's pieces and its end. Raises ValueError if the numbers of lines differ."""
