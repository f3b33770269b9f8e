"""Metrics of the user's own: a function of source, output and reference lines, named as module:function.

    def f(sources, outputs, references):   # three lists of as many lines
        return [...]                       # a number for each line, higher is better

It takes lists, since neural metrics score many lines at once. The score of a text is the mean over its lines,
so that intervals and p-values come from the same resamples as those of BLEU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headgates.analysis.extras import Extra
from headgates.analysis.metrics import Floats, Metric
from headgates.configs.fields import one_line, shortened
from headgates.configs.registry import imported
from headgates.data.ranks import first

if TYPE_CHECKING:
    import numpy as np
else:
    np = Extra("numpy")

WISH = "expected f(sources, outputs, references), lists of lines, to return a finite number for each line"
LARGEST_NUMBER = 1e100  # of a number: squares and sums of many are then finite too


def own_metric(path: str) -> Metric:
    """The metric of the function at module:function. Its name in files is module.function, which no other
    column has. The function gets every triple of lines once, as systems share most of their outputs.

    Raises ValueError where there is no such function. Its `statistics` are (N, 2), the line's number and 1;
    they raise ValueError where the function raises, or returns anything but N finite numbers below 1e100."""
    try:
        function = imported(path)
    except ValueError as error:
        raise ValueError(f"--metrics: {error}") from error
    if not callable(function):
        raise ValueError(f"--metrics {path}: {WISH}; got {shortened(function)}")
    known: dict[tuple[str, str, str], float] = {}

    def numbers_of(triples: list[tuple[str, str, str]]) -> list[float]:
        if new := [*dict.fromkeys(triple for triple in triples if triple not in known)]:
            known.update(zip(new, numbers(path, function, *map(list, zip(*new, strict=True))), strict=True))
        return [known[triple] for triple in triples]

    def statistics(outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> Floats:
        triples = [*zip(sources, outputs, references, strict=True)]
        return np.array([[number, 1] for number in first(lambda: numbers_of(triples))], dtype=np.float64)

    return Metric(
        path.replace(":", "."),
        path.partition(":")[2],
        statistics,
        lambda sums: sums[0] / sums[1],
        lambda sums: sums[:, 0] / sums[:, 1],
        lambda: f"mean over the lines of {path}",
    )


def numbers(
    path: str, function: Callable[..., Any], sources: list[str], outputs: list[str], references: list[str]
) -> list[float]:
    """What the function returns for these lines. Raises ValueError as `own_metric` says."""
    failed = f"--metrics {path}: {WISH}"
    try:
        returned = function([*sources], [*outputs], [*references])
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raised = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{failed}; it raised {raised} on {len(sources)} lines") from error
    try:
        found = [float(each) for each in returned]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{failed}; got {shortened(returned)}") from error
    if len(found) != len(sources):
        raise ValueError(f"{failed}; got {len(found)} for {len(sources)} lines")
    for value, output in zip(found, outputs, strict=True):
        if not abs(value) < LARGEST_NUMBER:
            raise ValueError(f"{failed}; got {value} for the output {shortened(output)}")
    return found


def check_metrics(metrics: Sequence[Metric], sources: Sequence[str], references: Sequence[str]) -> None:
    """Call each metric once before anything is trained: on two lines, the second without an output, which
    is what an untrained model may give. Raises ValueError where one fails."""
    for metric in metrics if references else ():
        metric.statistics([*references[:1], ""], [*references[:1]] * 2, [*sources[:1]] * 2)
