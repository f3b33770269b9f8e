"""Which heads a contrast needs: what closing a head, or all but a few, does to a number that a model has for
each of some pairs, such as log p(right output) - log p(wrong output).

    a head    m(all heads) - m(without it), exact; above 0 where the head works for the contrast
    a set     m without its heads (are they necessary?) and with them alone (are they enough?), beside random
              sets of as many heads at the same sites

Heads are named on other pairs than these sets are measured on, or their luck would count as skill. Letters: N
pairs, C closings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Value
from headgates.analysis.extras import Extra
from headgates.analysis.significance import holm
from headgates.analysis.without_heads import all_heads, closing, values_without
from headgates.gates import HeadMap

if TYPE_CHECKING:
    import numpy as np
    from scipy import stats  # type: ignore[import-untyped]
else:
    np = Extra("numpy")
    stats = Extra("scipy.stats")


def pair_values(
    model: nn.Module, batches: Iterable[Any], closings: Sequence[HeadMap], value: Value
) -> Tensor:
    """The value of every pair under each closing, (C, N), float64; arguments and errors are those of
    `values_without`."""
    return torch.cat([values for _, values in values_without(model, batches, closings, value)], 1)


def mean_changes(changes: Tensor, flips: int) -> list[dict[str, float]]:
    """For each row of (tests, N): its mean over the pairs, its 95% interval by Student's t, the two-sided p
    that the mean is 0, and p by Holm for all rows.

    p: how often the mean is at least as far from 0 when the sign of every pair is drawn anew, in so many
    draws (Fisher 1935; one is added to both counts). That holds at any number of pairs where right and wrong
    could be exchanged. A bootstrap of the mean rejects more than it says with few pairs, and most at the
    small p that Holm asks for. Pairs count as independent: words that they share are taken as given."""
    rows = changes.double().numpy()
    pairs = rows.shape[1]
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(flips, pairs))
    means, spread = rows.mean(1), rows.std(1, ddof=1) / pairs**0.5
    margins = float(stats.t.ppf(0.975, pairs - 1)) * spread
    reached = np.abs(signs @ rows.T / pairs) >= np.abs(means) * (1 - 1e-12)
    p_values = (reached.sum(0) + 1) / (flips + 1)
    return [
        {"mean": mean, "low": mean - margin, "high": mean + margin, "p_value": p, "p_value_holm": p_holm}
        for mean, margin, p, p_holm in zip(
            means.tolist(), margins.tolist(), p_values.tolist(), holm(p_values.tolist()), strict=True
        )
    ]


# ---------------------------------------------------------------- necessity and sufficiency


@dataclass(frozen=True)
class SetEffect:
    """What some heads do to the mean value, and where that stands among random sets of as many heads at the
    same sites.

    value: the mean with them closed, or with them alone open; random: the median of the random sets.
    percentile: the share of random sets that do less, ties by half; p_value: that of a random set doing as
    much, one-sided."""

    value: float
    random: float
    percentile: float
    p_value: float


def set_effects(
    model: nn.Module, batches: Iterable[Any], heads: HeadMap, value: Value, *, sets: int = 100, seed: int = 1
) -> tuple[SetEffect, SetEffect]:
    """Necessity and sufficiency of these heads (True): closing them only, and closing all others.

    Raises ValueError where they are none or all, or for sites that the model lacks."""
    none = closing(all_heads(model)).map(torch.zeros_like)
    if unknown := [site for site in heads if site not in none]:
        raise ValueError(
            f"the model has no {unknown[0].name} of {unknown[0].heads} heads; take heads of this model"
        )
    named = HeadMap({**none, **heads})
    if not 0 < named.count() < named.heads_total:
        raise ValueError(
            f"expected some heads of {named.heads_total}, got {named.count()}; a set is compared with random "
            "ones"
        )
    chosen = [named, *random_sets(named, sets, seed)]
    means = pair_values(model, batches, [*chosen, *map(HeadMap.__invert__, chosen)], value).mean(1)
    necessity, sufficiency = means.split(len(chosen))
    return ranked_effect(necessity, least=True), ranked_effect(sufficiency, least=False)


def random_sets(heads: HeadMap, count: int, seed: int) -> list[HeadMap]:
    """Sets of as many heads at each site, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    return [heads.map(lambda row: row[torch.randperm(len(row), generator=generator)]) for _ in range(count)]


def ranked_effect(means: Tensor, *, least: bool) -> SetEffect:
    """The first of the means (1 + R,) among the others. least: it does more where it is lower."""
    named, *random = (means if not least else -means).tolist()
    below, ties = sum(each < named for each in random), sum(each == named for each in random)
    return SetEffect(
        float(means[0]),
        sorted(means[1:].tolist())[len(random) // 2],
        (below + ties / 2) / len(random),
        (len(random) - below + 1) / (len(random) + 1),
    )
