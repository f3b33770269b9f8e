"""The fewest heads that lose at most so many points on validation: of the models that are tried, the one with
the fewest that analysis/knee.py accepts. All of them are the path, which the row of the model keeps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgates.analysis.knee import SLACK, Drop, drop, knee
from headgates.analysis.significance import RESAMPLES, Scored, resample_counts, score
from headgates.configs.recipe import MaxDrop, Recipe
from headgates.lab.lab import Run
from headgates.models.progress import say
from headgates.records.row import PathRecord
from headgates.tasks.base import Predictor

SHARES = (0.75, 0.625, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)  # of the heads, where no numbers are given


def numbers_of_heads(recipe: Recipe, total: int) -> list[int]:
    """The numbers to try, from many to few. Raises ValueError where the model has no more than one of
    them."""
    assert isinstance(recipe.budget, MaxDrop)
    usual = {round(total * share) for share in SHARES} - {0, total}
    counts = list(recipe.budget.heads) or sorted(usual, reverse=True)
    if too_many := [count for count in counts if count >= total]:
        kinds = ", ".join(recipe.kinds)
        raise ValueError(f"--heads: expected fewer than the {total} of {kinds}, got {too_many[0]}")
    return counts


def validated(run: Run, predictor: Predictor) -> Scored:
    """The model's outputs of all validation lines, by the metric that decides."""
    valid = run.text.corpus.valid
    return score(run.task.outputs(predictor, list(valid.sources)), list(valid.targets), run.task.metrics[:1])


def measured_drop(run: Run, model: str, heads: int, scored: Scored, reference: Scored, limit: float) -> Drop:
    """What a model of so many heads loses on validation; said with its name, and whether it is accepted."""
    found = drop(heads, scored, reference, resample_counts(len(run.text.corpus.valid), RESAMPLES))
    accepted = "accepted" if found.acceptable(limit) else "too much"
    say(
        f"{model}: {scored.main:.2f} {run.task.metrics[0].title} on validation, {found.mean:.2f} lost (95% "
        f"bound {found.bound:.2f}): {accepted}"
    )
    return found


@dataclass(frozen=True)
class Try:
    """A smaller model. asked: what it was made for, such as 24 heads or λ 0.01. scored: on validation; loss:
    there, None where it was not measured."""

    asked: str
    heads: int
    scored: Scored
    loss: float | None = None


def fewest(run: Run, recipe: Recipe, tries: Iterable[Try], reference: Scored) -> tuple[Try, dict[str, Any]]:
    """The accepted model with the fewest heads, and what its row says: `drop`, its own, and `path`, all that
    were tried. Raises ValueError where none is accepted."""
    assert isinstance(recipe.budget, MaxDrop)
    limit, drops, path = recipe.budget.points, dict[Drop, Try](), list[PathRecord]()
    for each in tries:
        words = each.asked if each.asked == f"{each.heads} heads" else f"{each.asked}, {each.heads} heads"
        lost = measured_drop(run, words, each.heads, each.scored, reference, limit)
        drops.setdefault(lost, each)
        path.append(
            {
                "asked": each.asked,
                "heads": each.heads,
                "score": each.scored.main,
                "lost": lost.mean,
                "bound": lost.bound,
                "loss": each.loss,
                "accepted": lost.acceptable(limit),
            }
        )
    best = knee([*drops], limit)
    if best is None:
        raise ValueError(
            f"--max-drop {limit:g}: everything that was tried loses more {run.task.metrics[0].title} on "
            f"validation (at most {limit:g}, 95% bound {limit + SLACK:g}); allow more, or give "
            + ("lower prices with --lambda" if recipe.budget.prices else "larger numbers with --heads")
        )
    return drops[best], {"drop": best.to_json(), "path": path}
