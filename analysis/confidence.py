"""Confidence of a head: the mean of its largest attention weight.   Voita et al. 2019 (arXiv:1905.09418),
section 4.

"Average of its maximum attention weight excluding the end of sentence symbol, where average is taken over
tokens." The paper does not say whether that symbol is left out as a query, as a key or as both. Here it is
both, so a head that rests on it is not confident, and nothing is renormalised. All tokens weigh the same,
whatever the length of their sentence. The paper looks at the encoder alone; attention_pass.py says how
queries and keys of the decoder count.   Letters: H heads, N counted query positions."""

from collections.abc import Iterable
from typing import Any

from headgates.analysis.attention_pass import AttentionBatch, HeadMeans, observe_attention
from headgates.gates import HeadMap


class Confidence:
    """Collects the largest weights of every head."""

    def __init__(self) -> None:
        self._largest = HeadMeans("confidence")

    def add(self, attention: AttentionBatch) -> None:
        for site in attention.weights:
            self._largest.add(site, attention.strongest(site).weight)

    def head_map(self) -> HeadMap:
        """Mean largest weight, in [0, 1]. Raises ValueError where no token was counted."""
        return self._largest.head_map()


def confidence(model: Any, batches: Iterable[Any], **options: Any) -> HeadMap:
    """Return the confidence of every head over the batches, in [0, 1]: the order of Behnke & Heafield 2020
    (EMNLP), lowest closed first. Options and errors are those of `observe_attention`: of a model of Hugging
    Face, special_ids says which tokens are left out as the end of sentence is."""
    observer = Confidence()
    observe_attention(model, batches, [observer], **options)
    return observer.head_map()
