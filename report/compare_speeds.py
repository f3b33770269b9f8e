"""What a comparison at speeds shows beside quality: how fast each method's models are by every runtime, and
what is left of their quality there.

The unpruned model by CTranslate2 int8 is the rival that costs nothing, so a pruned model is shown in int8
too. Each ratio is to the unpruned model by the same runtime.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from headgates.analysis.metrics import Metric
from headgates.records.table import Row
from headgates.report.compare_groups import Compared, Group
from headgates.report.table import interval_text

RUNTIME_NAMES = {"torch": "own search", "ct2": "CTranslate2", "int8": "int8"}


def at_speeds(compared: Compared) -> bool:
    """Whether methods were asked for speeds."""
    return any(group.first.speedup is not None for group in compared.groups)


def speeds_of(group: Group) -> list[dict[str, Any]]:
    """The speed of each seed's model, as result.json has it; none of a base."""
    found = [point.row.others.get("speed") for point in group.points]
    return [each for each in found if each is not None]


def measured(group: Group) -> list[float]:
    """How many times as fast as the unpruned model each seed's model is, by the runtime that was asked."""
    return [each["measured"]["median"] for each in speeds_of(group)]


def runtimes_of(compared: Compared) -> list[str]:
    """The runtimes that every model was measured by."""
    every = [set(each["runtimes"]) for group in compared.groups for each in speeds_of(group)]
    return [name for name in RUNTIME_NAMES if every and all(name in own for own in every)]


def by_runtime(group: Group, runtime: str, name: str) -> float | None:
    """The mean over seeds of a metric, or of `measured`, by a runtime; None of a base."""
    found = [each["runtimes"][runtime][name] for each in speeds_of(group)]
    if not found:
        return None
    return fmean(each["median"] if name == "measured" else each for each in found)


def speed_columns(compared: Compared, metric: Metric) -> list[str]:
    """The heads of the columns; none where no speed was asked for."""
    if not at_speeds(compared):
        return []
    names = [RUNTIME_NAMES[runtime] for runtime in runtimes_of(compared)]
    return [
        "asked (x)",
        "predicted (x)",
        "measured (x)",
        "of seeds",
        *(head for name in names for head in (f"{name} (x)", f"{metric.title}, {name}")),
    ]


def speed_cells(group: Group, compared: Compared, metric: Metric) -> list[str]:
    """What stands in `speed_columns`."""
    if not at_speeds(compared):
        return []
    speeds, ratios = speeds_of(group), measured(group)
    cells = []
    for runtime in runtimes_of(compared):
        for name, form in (("measured", ".2f"), (metric.name, ".2f")):
            value = by_runtime(group, runtime, name)
            cells.append("" if value is None else format(value, form))
    if not speeds:
        return ["", "", "", "", *cells]
    return [
        f"{group.first.speedup:g}",
        f"{fmean(each['predicted'] for each in speeds):.2f}",
        f"{fmean(ratios):.2f}",
        interval_text((min(ratios), max(ratios)), ".2f") if len(ratios) > 1 else "",
        *cells,
    ]


def speed_row(group: Group, compared: Compared, metrics: Sequence[Metric]) -> Row:
    """The same for compare.json."""
    speeds = speeds_of(group)
    if not speeds:
        return {}
    found: Row = {
        "speedup": group.first.speedup,
        "predicted": fmean(each["predicted"] for each in speeds),
        "measured": fmean(measured(group)),
        "tokens": fmean(each["tokens"] for each in speeds),
    }
    for runtime in runtimes_of(compared):
        for name in ("measured", *(metric.name for metric in metrics)):
            found[f"{runtime}_{name}"] = by_runtime(group, runtime, name)
    return found


def int8_alone(compared: Compared, metric: Metric) -> list[str]:
    """The sentence on the unpruned model by int8, where it was measured."""
    runtimes = runtimes_of(compared)
    if not {"ct2", "int8"} <= {*runtimes}:
        return []
    speeds = [each["runtimes"] for group in compared.groups for each in speeds_of(group)]
    faster = [each["ct2"]["milliseconds"][1] / each["int8"]["milliseconds"][1] for each in speeds]
    before, after = (speeds[0][runtime]["unpruned"][metric.name] for runtime in ("ct2", "int8"))
    return [
        f"The unpruned model by CTranslate2 int8 is {fmean(faster):.2f} times as fast as in fp32 "
        f"({interval_text((min(faster), max(faster)), '.2f')}, each row beside it) at {after:.2f} "
        f"{metric.title} in place of {before:.2f}; what pruning adds to that is in the columns of int8."
    ]
