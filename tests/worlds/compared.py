"""Points of a comparison with planted truth: how many of 200 test lines each system has right."""

from collections.abc import Iterable

import numpy as np

from headgates.analysis.metrics import ACCURACY
from headgates.analysis.significance import RESAMPLES, Scored, resample_counts, score
from headgates.configs.systems import BASES
from headgates.pruning.point import MadePoint
from headgates.records.row import Measure, ResultRow
from headgates.report.compare_groups import Compared

LINES, TOTAL = 200, 23
COUNTS = resample_counts(LINES, RESAMPLES)


def right(lines: Iterable[int]) -> Scored:
    """A system that has these lines right and no other."""
    wanted = set(lines)
    return score(["a" if i in wanted else "b" for i in range(LINES)], ["a"] * LINES, (ACCURACY,))


def point(
    method: str,
    heads: int,
    scored: Scored,
    *,
    epochs: int = 0,
    seed: int = 1,
    loss: float | None = None,
    **told,
) -> MadePoint:
    """A point; heads: those that are open, and asked for unless a lambda (`lam`) is told."""
    measures = {
        "accuracy": Measure(
            scored.main, "its signature", (scored.main - 1, scored.main + 1), 0.0, (-1.0, 1.0), 0.5
        )
    }
    row = ResultRow(method, heads, TOTAL, {"cross": heads}, measures, reference="base")
    told = {"asked": None if "lam" in told else heads} | told
    run = f"run-{method}-{heads}-{epochs}-s{seed}"
    return MadePoint(method, epochs, seed, run=run, row=row, scored=scored, loss=loss, **told)


def compared(
    points: list[MadePoint], *, base: Iterable[int] = range(190), continued: Iterable[int] | None = None
) -> Compared:
    """These points on a base that has such lines right; continued: those of the base trained on for an epoch,
    whose loss is lower."""
    bases = [point(BASES[0], TOTAL, right(base), loss=2.0, seed=0)]
    bases += [] if continued is None else [point(BASES[1], TOTAL, right(continued), epochs=1, loss=1.5)]
    return Compared(points, bases, COUNTS)


def scattered(count: int, seed: int) -> list[int]:
    """So many lines, drawn by a seed."""
    return [int(i) for i in np.random.default_rng(seed).choice(LINES, size=count, replace=False)]
