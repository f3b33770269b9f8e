"""What all that translates lines has in common: the `Translator` of a run, and the opened model of an
exported folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that a stream of lines needs neither torch nor a tokenizer before its first line
    import numpy as np

    from headgates.configs.settings import SearchConfig
    from headgates.data.shortlist import Shortlist
    from headgates.data.vocab import Vocabulary
    from headgates.models.beam import Hypothesis


@dataclass(frozen=True)
class RankedTranslation:
    """One of a line's n best: text, log probability in nats (end included), the score it was ranked by, its
    number of tokens."""

    text: str
    log_prob: float
    score: float
    tokens: int


class LineTranslator:
    """A model with its vocabularies and search settings, whatever runs it: a subclass says how one batch is
    searched and scored."""

    search: "SearchConfig"
    source_vocab: "Vocabulary"
    target_vocab: "Vocabulary"
    shortlist: "Shortlist | None" = None  # search computes what it lists for a batch's sources, and no others
    max_positions: int | None  # the most tokens of a line, the end counted; None where positions have no end

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
    ) -> list[list[RankedTranslation]]:
        """Return the `beam` best translations of every line, best first. Raises ValueError at a beam below 1
        and at a line that is longer than the model's positions."""
        search = self.search
        search = search if beam is None else replace(search, beam=beam)
        search = search if length_penalty is None else replace(search, length_penalty=length_penalty)
        if search.beam < 1:
            raise ValueError(f"expected a beam of at least 1, got {beam}")
        found = self.n_best(self.source_vocab.encode(list(lines)), search)
        texts = iter(self.target_vocab.decode([one.ids for best in found for one in best]))
        return [
            [RankedTranslation(next(texts), one.log_prob, one.score, len(one.ids) + 1) for one in best]
            or [RankedTranslation("", 0.0, 0.0, 0)]
            for best in found
        ]

    def n_best(self, sources: Sequence[list[int]], search: "SearchConfig") -> "list[list[Hypothesis]]":
        """Return the best hypotheses of every source, ids without special tokens; none of an empty one."""
        self.check_lengths("source", sources)
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for chosen in length_batches(list(map(len, sources)), search.batch_tokens // search.beam):
            batch = self.search_batch([sources[i] for i in chosen], search)
            for i, best in zip(chosen, batch, strict=True):
                found[i] = best
        return found

    def search_batch(self, sources: list[list[int]], search: "SearchConfig") -> "list[list[Hypothesis]]":
        """`n_best` of one batch, of which none is empty."""
        raise NotImplementedError(f"{type(self).__name__} must search a batch")

    def candidates(self, sources: Sequence[Sequence[int]]) -> "np.ndarray | None":
        """The target ids that are computed for a batch of sources, ascending; None for all."""
        if self.shortlist is None:
            return None
        pieces = {self.source_vocab.specials.end}.union(*sources)
        return self.shortlist.candidates(pieces, self.target_vocab.specials.always_known)

    def search_to(self, sources: list[list[int]], beam: int, tokens: int) -> None:
        """Search a batch for hypotheses of exactly so many tokens, the end counted, and forget them: what is
        timed then does not depend on what the model says."""
        exactly = replace(self.search, max_ratio=0.0, max_extra=tokens, min_length=tokens - 1)
        self.search_batch(sources, replace(exactly, beam=beam))

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Return the natural-log probabilities of every target's pieces and its end, without those of forced
        pieces. Raises ValueError if the numbers of lines differ."""
        if len(sources) != len(targets):
            raise ValueError(
                f"expected as many targets as sources, got {len(sources)} sources and {len(targets)} targets"
            )
        return self.log_probs(self.source_vocab.encode(sources), self.target_vocab.encode(targets))

    def log_probs(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[list[float]]:
        """`score` of ids without special tokens."""
        self.check_lengths("source", sources)
        self.check_lengths("target", targets)
        found: list[list[float]] = [[] for _ in sources]
        forced = len(self.target_vocab.specials.forced)
        lengths = [max(map(len, pair)) + 1 for pair in zip(sources, targets, strict=True)]
        for chosen in length_batches(lengths, self.search.batch_tokens):
            batch = self.score_batch([sources[i] for i in chosen], [targets[i] for i in chosen])
            for i, row in zip(chosen, batch, strict=True):
                found[i] = row[forced : len(targets[i]) + 1]
        return found

    def check_lengths(self, side: str, ids_list: Sequence[list[int]]) -> None:
        """Raises ValueError at a line that is longer than the positions of the model."""
        most = self.max_positions
        for line, ids in enumerate(ids_list, start=1):
            if most is not None and len(ids) >= most:
                raise ValueError(
                    f"line {line}: a {side} of {len(ids) + 1} tokens is longer than the {most} positions of "
                    "the model; split it, or train with a larger model.max_positions"
                )

    def score_batch(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log probabilities of one batch, those of forced pieces before and any of padding after them."""
        raise NotImplementedError(f"{type(self).__name__} must score a batch")


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
