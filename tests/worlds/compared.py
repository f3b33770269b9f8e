"""Rows of a comparison with planted truth: how many of 200 test lines each system has right."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from headgates.analysis.metrics import ACCURACY
from headgates.analysis.significance import RESAMPLES, Scored, resample_counts, score
from headgates.configs.recipe import UNPRUNED, Budget, Recipe, Units
from headgates.pruning.make import Row
from headgates.records.folder import RunFolder
from headgates.records.row import BASE, CONTINUED, PRUNED, Measure, ResultRow
from headgates.report.compare_groups import Compared

LINES, TOTAL = 200, 23
COUNTS = resample_counts(LINES, RESAMPLES)
NOWHERE = Path("/nowhere")


def right(lines: Iterable[int]) -> Scored:
    """A system that has these lines right and no other."""
    wanted = set(lines)
    return score(["a" if i in wanted else "b" for i in range(LINES)], ["a"] * LINES, (ACCURACY,))


def made(
    choose: str,
    heads: int,
    scored: Scored,
    *,
    epochs: int = 0,
    seed: int = 1,
    refit: str | None = None,
    budget: Budget | None = None,
    loss: float | None = None,
    runs: Path = NOWHERE,
) -> Row:
    """The row of a recipe. heads: those that are open, and asked for unless there is another budget."""
    budget = budget or Units(heads)
    return row_of(Recipe(choose, budget, refit=refit, epochs=epochs, seed=seed), heads, scored, loss, runs)


def twice(rows: Iterable[Row]) -> list[Row]:
    """Each row, and the same of another seed."""
    return [
        row_of(replace(row.recipe, seed=seed), row.result.heads_open, row.scored, row.result.loss, NOWHERE)
        for row in rows
        for seed in (1, 2)
    ]


def row_of(recipe: Recipe | None, heads: int, scored: Scored, loss: float | None, runs: Path) -> Row:
    system = BASE if recipe is None else CONTINUED if recipe.choose == UNPRUNED else PRUNED
    measure = Measure(scored.main, "its signature", (scored.main - 1, scored.main + 1), 0.0, (-1.0, 1.0), 0.5)
    row = ResultRow(
        system,
        heads,
        TOTAL,
        {"cross": heads},
        {"accuracy": measure},
        reference=BASE,
        recipe=recipe,
        loss=loss,
    )
    name = "-".join(recipe.file_words) if recipe else BASE
    return Row(recipe, RunFolder(runs / name), row, scored)


def compared(
    rows: list[Row], *, base: Iterable[int] = range(190), continued: Iterable[int] | None = None
) -> Compared:
    """These rows on a base that has such lines right; continued: those of the base trained on for an epoch,
    whose loss is higher, as it learned from a teacher."""
    bases = [row_of(None, TOTAL, right(base), 2.0, NOWHERE)]
    if continued is not None:
        trained = Recipe(UNPRUNED, Units(), epochs=1)
        bases.append(row_of(trained, TOTAL, right(continued), 2.5, NOWHERE))
    return Compared(rows, bases, COUNTS)


def scattered(count: int, seed: int) -> list[int]:
    """So many lines, drawn by a seed."""
    return [int(i) for i in np.random.default_rng(seed).choice(LINES, size=count, replace=False)]
