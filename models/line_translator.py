"""What all that translates lines has in common: the `Translator` of a run, and the opened model of an
exported folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # so that a stream of lines needs neither torch nor a tokenizer before its first line
    from headgates.configs.schema import SearchConfig
    from headgates.data.vocab import Vocabulary


@dataclass(frozen=True)
class Translation:
    """One of a line's n best: text, log probability in nats (end included), the score it was ranked by, its
    number of tokens."""

    text: str
    log_prob: float
    score: float
    tokens: int


class LineTranslator(Protocol):
    """A model with its vocabularies and search settings, whatever runs it."""

    search: "SearchConfig"
    source_vocab: "Vocabulary"
    target_vocab: "Vocabulary"

    def translate(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[str]:
        """Return one translation for every line; an empty line stays empty. What is None is as `search`
        says."""
        return [
            best[0].text for best in self.translate_n_best(lines, beam=beam, length_penalty=length_penalty)
        ]

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        """Return the `beam` best translations of every line, best first. Raises ValueError at a beam below
        1."""
        raise NotImplementedError

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Return the natural-log probabilities of every target's pieces and its end. Raises ValueError if the
        numbers of lines differ."""
        raise NotImplementedError

    def search_options(self, beam: int | None, length_penalty: float | None) -> tuple[int, float]:
        """Return the beam width and length penalty, as `search` says where they are None. Raises ValueError
        at a beam below 1."""
        beam = self.search.beam if beam is None else beam
        if beam < 1:
            raise ValueError(f"expected a beam of at least 1, got {beam}")
        return beam, self.search.length_penalty if length_penalty is None else length_penalty

    def encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of sources and targets, without special tokens. Raises ValueError if the numbers of
        lines differ."""
        if len(sources) != len(targets):
            raise ValueError(
                f"expected as many targets as sources, got {len(sources)} sources and {len(targets)} targets"
            )
        return self.source_vocab.encode(sources), self.target_vocab.encode(targets)

    def search_batches(self, lengths: Sequence[int], beam: int) -> list[list[int]]:
        """Return the numbers of the lines that are not empty, longest first, in batches of
        `search.batch_tokens` padded pieces times beam.

        lengths: pieces of each line. Every batch has a line at least."""
        return length_batches(lengths, self.search.batch_tokens // beam)


def length_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Return the numbers of the lines that are not empty, longest first, in batches of at most so many
    tokens, ends and padding counted, but of a line at least."""
    order = sorted((i for i, length in enumerate(lengths) if length > 0), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    while order:
        size = max(1, tokens // (lengths[order[0]] + 1))
        batches.append(order[:size])
        order = order[size:]
    return batches
