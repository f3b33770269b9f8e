"""Whether a model forgot how to end: translations that run to the length limit of the search."""

from collections.abc import Sequence
from typing import Any

from headgates.models.beam import length_limits
from headgates.models.translator import Translator

NEAR = 0.8  # of the limit, which is far above the length of a translation


def endless_share(
    predictor: Any, lines: Sequence[str], outputs: Sequence[str], before: Sequence[str]
) -> float:
    """The share of the lines whose outputs fill the length that the search allows, where the base's,
    `before`, do not; 0 for what does not translate. Outputs are cut into pieces again, maybe fewer ones."""
    if not isinstance(predictor, Translator):
        return 0.0
    lengths = list(map(len, predictor.source_vocab.encode(list(lines))))
    vocab = predictor.target_vocab
    limits = length_limits(lengths, vocab.specials, predictor.search, predictor.max_positions)
    ours, theirs = (
        [len(ids) >= NEAR * limit for ids, limit in zip(vocab.encode(list(each)), limits, strict=True)]
        for each in (outputs, before)
    )
    return sum(one and not other for one, other in zip(ours, theirs, strict=True)) / len(lines)
