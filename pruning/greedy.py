"""Greedy pruning by a score: close the lowest heads first.   Michel et al. 2019, section 4.2."""

from gates import HeadMap


def lowest_closed(scores: HeadMap, *, keep: int, l2_per_layer: bool) -> HeadMap:
    """Closed heads (bool) when exactly `keep` of the scored heads stay open, the highest scores.

    l2_per_layer: each layer's scores are first divided by their l2 norm (Michel et al., appendix; their default in practice).
    Raises ValueError unless 0 <= keep <= heads."""
    if not 0 <= keep <= scores.heads_total:
        raise ValueError(f"cannot keep {keep} of {scores.heads_total} heads; expected 0 to {scores.heads_total}")
    return (scores.l2_per_layer() if l2_per_layer else scores).lowest(scores.heads_total - keep)
