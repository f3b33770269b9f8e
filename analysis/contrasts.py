"""Which heads a contrast needs: what closing a head, or all but a few, does to a number that a model has for
each of some pairs, such as log p(right output) - log p(wrong output).

    a head    m(all heads) - m(without it), exact; above 0 where the head works for the contrast
    a set     m without its heads (are they necessary?) and with them alone (are they enough?), beside random
              sets of as many heads at the same sites

Heads are named on other pairs than these sets are measured on, or their luck would count as skill. Letters: N
pairs, C closings.
"""

import math
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

DRAWS_HELD = 10_000  # draws held at once
INTERVAL_DRAWS = 2_000  # of each row, for its interval
SKEWED = 1 / 2  # of all rows, the more skewed, show the tail of any: the others may hide it
TAIL_ROUNDS = 4  # times as many draws for the tail, which Holm asks for; they serve all rows
CANCELLED = 1e-9  # share of a sum of squares below which what is left of it is none


def pair_values(
    model: nn.Module, batches: Iterable[Any], closings: Sequence[HeadMap], value: Value
) -> Tensor:
    """The value of every pair under each closing, (C, N), float64; arguments and errors are those of
    `values_without`."""
    return torch.cat([values for _, values in values_without(model, batches, closings, value)], 1)


Words = frozenset[str]


def alike_pairs(differences: Sequence[tuple[Words, Words]]) -> list[int]:
    """For each pair the number of its unit: pairs of one unit have one luck, that of the words they share.

    differences: of each pair the words that only its right side has, and those that only its wrong side has,
    the same in a pair that is the other way round. Pairs that differ in the same words share what a head does
    to these words. It cancels between two pairs that are opposite ways round, so these are units of their
    own; those that are left over make one unit. Where all pairs differ in the same words the same way round
    these words are what the contrast is, and every pair is a unit; so is a pair that differs in no word."""
    if len(set(differences)) == 1:
        return [*range(len(differences))]
    ways: dict[frozenset[Words], dict[tuple[Words, Words], list[int]]] = {}
    for number, (right, wrong) in enumerate(differences):
        same = frozenset((right, wrong)) if right != wrong else frozenset((right, Words((str(number),))))
        ways.setdefault(same, {}).setdefault((right, wrong), []).append(number)
    units = [*range(len(differences))]
    for both in ways.values():
        opposed = min(map(len, both.values())) if len(both) == 2 else 0
        for numbers in both.values():
            for number in numbers[opposed:]:
                units[number] = numbers[opposed]
    return units


def mean_changes(changes: Tensor, draws: int, units: Sequence[int] | None = None) -> list[dict[str, float]]:
    """For each row of (tests, N): its mean over the pairs, its 95% interval, the two-sided p that the mean is
    0, and p by Holm for all rows. units: of each pair, those of `alike_pairs`; each its own unless given.

    p is the larger of two. One says how often the mean is at least as far from 0 when the sign of every unit
    is drawn anew, in so many draws (Fisher 1935; one is added to both counts). It is exact, at any number of
    units and after Holm, where closing the head does not depend on which output is right: changes are then
    as likely above 0 as below, at any size. It says too much of changes that are skewed around a mean of 0,
    which dividing by their spread does not mend: flips leave the order of Student's t as it is. So the other
    is the bootstrap of t (Efron 1979; Hall 1992, section 3.5): units are drawn anew around the mean, and
    each draw is divided by its own spread. A few units show too little of a long tail, so they are drawn
    from the units of the half of all rows that is more skewed, each row divided by its spread and turned so
    that its long tail is above 0; p is twice the share of draws as far below 0 as the row's own t is from
    it. The interval holds Student's and that of the row's own bootstrapped t.

    Where nothing is planted, p falls below .05 in at most 7.5% of the draws from normal, heavy-tailed (t of
    3 degrees of freedom), exponential and lognormal changes of 20 and 60 pairs, and with shared words; so
    does the smallest of 48 p by Holm, of lognormal rows, alone and among normal ones; of 12 among 36
    heavy-tailed ones it did in 57 of 1,000 (tests/analysis/test_contrasts.py, LOG.md)."""
    rows = changes.double().numpy()
    pairs = rows.shape[1]
    _, unit = np.unique([*range(pairs)] if units is None else units, return_inverse=True)  # (N,)
    sizes = np.bincount(unit).astype(np.float64)  # (G,), pairs of each unit
    means, count = rows.mean(1), len(sizes)
    sums = np.stack([np.bincount(unit, row) for row in rows])  # (tests, G)
    apart = sums - sizes * means[:, None]
    spread = _standard_error(apart, sizes)
    own_t, generator = ratio(means, spread), np.random.default_rng(0)
    standard = apart[spread > 0] / spread[spread > 0, None]
    skew = (standard**3).sum(1)
    longest = np.argsort(-np.abs(skew), kind="stable")[: math.ceil(SKEWED * len(skew))]
    turned = standard[longest] * np.where(skew[longest] < 0, -1.0, 1.0)[:, None]
    flipped, beyond = np.zeros((2, len(rows)))
    for begin in range(0, draws, DRAWS_HELD):
        size = min(DRAWS_HELD, draws - begin), count
        signs = generator.choice((-1.0, 1.0), size=size)
        flipped += (np.abs(signs @ sums.T / pairs) >= np.abs(means) * (1 - 1e-12)).sum(0)
        for _ in range(TAIL_ROUNDS if len(turned) else 0):
            which = generator.integers(count, size=size)
            t = np.sort(_t_of(turned[generator.integers(len(turned), size=size), which], sizes[which]))
            beyond += np.searchsorted(t, -np.abs(own_t), side="right") / TAIL_ROUNDS
    p_values = np.minimum(1, (np.maximum(flipped, 2 * beyond) + 1) / (draws + 1))
    which, ends = generator.integers(count, size=(min(INTERVAL_DRAWS, draws), count)), (0.025, 0.975)
    low, high = np.transpose(
        [np.quantile(_t_of(row[which], sizes[which]), ends, method="inverted_cdf") for row in apart]
    )
    student = float(stats.t.ppf(0.975, count - 1))
    # few units: a draw of one unit alone has no spread, and its t no end
    down, up = (np.where(np.isfinite(t), np.maximum(t, student), student) * spread for t in (high, -low))
    names = ("mean", "low", "high", "p_value", "p_value_holm")
    columns = (means, means - down, means + up, p_values, np.array(holm(p_values.tolist())))
    return [
        dict(zip(names, row, strict=True)) for row in zip(*(each.tolist() for each in columns), strict=True)
    ]


def _standard_error(apart: Any, sizes: Any) -> Any:
    """The standard error of the mean, of units that are so far from it and have so many pairs, (..., G)."""
    count = apart.shape[-1]
    return ((apart**2).sum(-1) * count / max(1, count - 1)) ** 0.5 / sizes.sum(-1)


def _t_of(drawn: Any, sizes: Any) -> Any:
    """Student's t of drawn units, (..., G), around 0."""
    mean = drawn.sum(-1) / sizes.sum(-1)
    apart = drawn - mean[..., None] * sizes
    cancelled = (apart**2).sum(-1) <= CANCELLED * (drawn**2).sum(-1)
    return ratio(mean, np.where(cancelled, 0, _standard_error(apart, sizes)))


def ratio(number: Any, spread: Any) -> Any:
    """number / spread; 0 where the number is 0, infinite where the spread alone is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number == 0, 0.0, number / spread)


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
