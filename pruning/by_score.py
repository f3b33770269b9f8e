"""Heads and neurons of the lowest scores close: down to a number, a speed or a size, or as far as the loss of
quality allows.   Michel et al. 2019, section 4."""

import time
from collections.abc import Iterator
from typing import Any

from headgates.configs.recipe import MaxDrop, Recipe, Share, Speed, Units
from headgates.gates import HeadMap, Subnet
from headgates.lab.lab import Run
from headgates.pruning.choice import Choice
from headgates.pruning.choosers import check_parts
from headgates.pruning.closing import calibration_of, closed_heads
from headgates.pruning.max_drop import Try, fewest, numbers_of_heads, validated
from headgates.pruning.planning import Planning
from headgates.pruning.scores import (
    ScoreRequest,
    closed_by,
    head_scores,
    request_of,
    scoring_seconds,
)
from headgates.records.source import Source


def by_score(run: Run, recipe: Recipe) -> Choice:
    """Raises ValueError at neurons that the score does not know, at numbers that the model has not, and at a
    speed or a drop that cannot be met."""
    check_parts(recipe)
    source = run.text.source(run.base)
    budget = recipe.budget
    if isinstance(budget, Speed | Share):
        planning = Planning(run, source, recipe)

        def lowest_first() -> Choice:
            planning.tell_time(losses=False)
            return planning.lowest_first(planning.order(recipe.choose))

        return planning.once(lowest_first)
    request = request_of(run, recipe, source)
    scores = scores_of(recipe, request, source)
    seconds, begin = scoring_seconds(recipe.choose, request), time.perf_counter()
    facts: dict[str, Any] = {}
    if isinstance(budget, MaxDrop):
        found, facts = fewest_heads(run, recipe, scores, request, source)
        keep = {"heads": found.heads}
    else:
        assert isinstance(budget, Units)
        keep = budget.counts
        check_counts(scores, keep)
    closed = closed_by(recipe.choose, scores, request=request, keep=keep)
    seconds += time.perf_counter() - begin
    return Choice(source.predictor, Subnet.of(source.model).without(closed), seconds, facts=facts)


def scores_of(recipe: Recipe, request: ScoreRequest, source: Source) -> HeadMap:
    """The scores of what may close, of the parts that the model has."""
    scores = head_scores(recipe.choose, request).select(recipe.kinds)
    return HeadMap({site: row for site, row in scores.items() if site.heads})


def check_counts(scores: HeadMap, keep: dict[str, int]) -> None:
    """Raises ValueError where more are to stay than may close."""
    for word, count in keep.items():
        own = scores.select([word])
        if count > own.heads_total:
            what = "neurons" if word.endswith("ffn") else "heads"
            kinds = ", ".join(own.by_kind())
            raise ValueError(
                f"--{what}: cannot keep {count} of {own.heads_total} {what} of {kinds}; give a smaller number"
            )


def fewest_heads(
    run: Run, recipe: Recipe, scores: HeadMap, request: ScoreRequest, source: Source
) -> tuple[Try, dict[str, Any]]:
    """The fewest heads whose loss of quality on validation is accepted, without training."""
    calibration = calibration_of(run, recipe, source)

    def tries() -> Iterator[Try]:
        for count in numbers_of_heads(recipe, scores.heads_total):
            closed = closed_by(recipe.choose, scores, request=request, keep={"heads": count})
            with closed_heads(source.model, closed, recipe.closing, calibration):
                yield Try(f"{count} heads", count, validated(run, source.predictor))

    return fewest(run, recipe, tries(), validated(run, source.predictor))
