"""The one list of columns of a comparison: the tables on the terminal and in compare.md, compare.csv,
compare.json and the page are made from it.

A column says what it is called in files and in tables, and what stands in it for a group of rows that differ
in their seed alone. Models that a plan made have their speed by each runtime; the unpruned model by
CTranslate2 int8 is the rival that costs nothing, so a pruned model is shown in int8 too. Each ratio is to the
unpruned model by the same runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from headgates.analysis.metrics import Metric
from headgates.configs.kinds import KINDS
from headgates.records.row import COMPUTE_PARTS, ResultRow, SpeedRecord
from headgates.records.table import TableRow
from headgates.report.compare_groups import Compared, Difference, Group, mean
from headgates.report.table import interval_text, layers_text

RUNTIME_NAMES = {"torch": "own search", "bf16": "own search, bf16", "ct2": "CTranslate2", "int8": "int8"}
DIFFERENCE = "difference"


@dataclass(frozen=True)
class Column:
    """names: in files, two for an interval. value: of a group, None where it is not known or says nothing.
    head: in tables, empty where it stands in files alone. form: of a number in tables."""

    names: tuple[str, ...]
    value: Callable[[Group], Any]
    head: str = ""
    form: str = ""

    def cell(self, group: Group) -> str:
        value = self.value(group)
        if value is None:
            return ""
        return interval_text(value, self.form) if isinstance(value, tuple) else format(value, self.form)


def entries(columns: Sequence[Column], group: Group) -> TableRow:
    """What files hold of a group."""
    row: TableRow = {}
    for column in columns:
        value = column.value(group)
        values = value if isinstance(value, tuple) else (value,) * len(column.names)
        row |= zip(column.names, values, strict=True)
    return row


def comparison_columns(
    compared: Compared, metrics: Sequence[Metric], differences: Mapping[Group, Difference]
) -> list[Column]:
    """metrics: the first decides. differences: of groups from what they are compared with."""
    first, *others = metrics

    def by_metric(metric: Metric) -> list[Column]:
        references = {group: compared.reference(group.epochs) for group in differences}
        found = {group: group.by(metric).minus(other.by(metric)) for group, other in references.items()}
        return difference_columns(f"{metric.name}_{DIFFERENCE}", f"{metric.title} {DIFFERENCE}", found)

    return [
        Column(("method",), lambda group: group.label, "method"),
        Column(("learned",), lambda group: int(group.learned)),
        Column(("epochs",), lambda group: group.epochs),
        Column(("asked",), budget_words, "asked"),
        Column(("missed",), lambda group: group.first.missed or None, "missed"),
        Column(("heads",), lambda group: group.heads, "heads", ".4g"),
        *map(kind_column, KINDS),
        over_seeds("neurons", lambda row: row.neurons_open, "neurons", ",.0f"),
        Column(("layers",), lambda group: layers_text(group.first) or None, "layers"),
        Column(("seeds",), lambda group: len(group.rows), "seeds"),
        Column(("lowest", "highest"), range_of_seeds, "of seeds", ".2f"),
        Column((first.name,), lambda group: group.mean, first.title, ".2f"),
        Column((f"{first.name}_low", f"{first.name}_high"), lambda group: group.interval, "95%", ".1f"),
        *(metric_column(metric) for metric in others),
        Column(
            ("reference",),
            lambda group: compared.reference(group.epochs).label if group in differences else None,
        ),
        *difference_columns(DIFFERENCE, DIFFERENCE, differences),
        Column(("p_value",), of_difference(differences, "p")),
        Column(("p_holm",), of_difference(differences, "p_holm"), "p (Holm)", ".3f"),
        Column(("p_mcnemar",), p_mcnemar, "McNemar", ".3f"),
        *chain.from_iterable(map(by_metric, others)),
        *speed_columns(compared, metrics),
        Column(("length",), lambda group: mean([row.scored.length for row in group.rows]), "length", ".2f"),
        Column(("loss",), lambda group: group.loss, "valid. loss", ".4f"),
        Column(("shared",), lambda group: most_alike(group, compared), "heads shared"),
        over_seeds("parameters", lambda row: row.parameters, "parameters", ",.0f"),
        over_seeds("seconds", lambda row: row.seconds, "seconds", ".3g"),
        *map(part_column, COMPUTE_PARTS),
    ]


def budget_words(group: Group) -> str | None:
    return None if group.is_base else group.recipe.budget.words


def range_of_seeds(group: Group) -> tuple[float, float] | None:
    return group.range if len(group.rows) > 1 else None


def over_seeds(
    name: str, value: Callable[[ResultRow], float | None], head: str = "", form: str = ""
) -> Column:
    """The mean over seeds of a number of each row; None where one is not known."""
    return Column((name,), lambda group: mean([value(row.result) for row in group.rows]), head, form)


def kind_column(kind: str) -> Column:
    return over_seeds(kind, lambda row: row.heads_by_kind.get(kind, 0))


def metric_column(metric: Metric) -> Column:
    return Column((metric.name,), lambda group: group.by(metric).mean, metric.title, ".2f")


def of_difference(found: Mapping[Group, Difference], name: str) -> Callable[[Group], Any]:
    """An attribute of a group's difference from the reference; None of a group without one."""
    return lambda group: getattr(found[group], name) if group in found else None


def difference_columns(name: str, head: str, found: Mapping[Group, Difference]) -> list[Column]:
    """The differences from the reference in one metric, over sentences and seeds."""
    return [
        Column((name,), of_difference(found, "value"), head, "+.2f"),
        Column((f"{name}_low", f"{name}_high"), of_difference(found, "interval"), "95%", "+.2f"),
    ]


def part_column(part: str) -> Column:
    return Column((f"{part}_seconds",), lambda group: group.seconds_of(part) or None, f"{part} (s)", ".0f")


def p_mcnemar(group: Group) -> float | None:
    """Of a single seed, as its own run has it."""
    return None if group.is_base or len(group.rows) > 1 else group.first.main.p_mcnemar


def most_alike(group: Group, compared: Compared) -> str | None:
    """The recipe whose open heads are most like the group's, and their Jaccard overlap: two with the same
    heads are one choice."""
    others = [other for other in compared.at(group.epochs, group.size) if other.label != group.label]
    found = [(overlap, o.label) for o in others if (overlap := group.overlap(o)) is not None]
    return "{:.2f} {}".format(*max(found)) if found else None


def table_of(columns: Sequence[Column], groups: Sequence[Group], reference: Group) -> list[list[str]]:
    """The head of a table, then its rows, without the columns in which no row has anything."""
    table = []
    for column in (each for each in columns if each.head):
        cells = [column.cell(group) for group in groups]
        if not any(cells):
            continue
        if column.names == (DIFFERENCE,):
            cells[groups.index(reference)] = "reference"
        table.append([column.head, *cells])
    return [list(row) for row in zip(*table, strict=True)]


# ---------------------------------------------------------------- speeds


def speeds_of(group: Group) -> list[SpeedRecord]:
    """The speed of each seed's model; none of a base."""
    return [row.result.speed for row in group.rows if row.result.speed is not None]


def common_runtimes(compared: Compared) -> list[str]:
    """The runtimes that every planned model was measured by."""
    every = [set(each["runtimes"]) for group in compared.groups for each in speeds_of(group)]
    return [name for name in RUNTIME_NAMES if every and all(name in own for own in every)]


def measured_range(group: Group) -> tuple[float, float] | None:
    ratios = [each["measured"]["median"] for each in speeds_of(group)]
    return (min(ratios), max(ratios)) if len(ratios) > 1 else None


def timed_words(group: Group) -> str | None:
    """By which runtime, batch, beam and threads its models were timed; None where none was."""
    return ", ".join(dict.fromkeys(each["timed"] for each in speeds_of(group))) or None


def speed_column(name: str, value: Callable[[SpeedRecord], float | None], head: str = "") -> Column:
    return over_seeds(name, lambda row: row.speed and value(row.speed), head, ".2f")


def predicted_speed(speed: SpeedRecord) -> float | None:
    """None of plans for a size, which predict that and no speed."""
    return speed["predicted"] if speed["budget"] == "speedup" else None


def speed_columns(compared: Compared, metrics: Sequence[Metric]) -> list[Column]:
    columns = [
        speed_column("predicted", predicted_speed, "predicted (x)"),
        speed_column("measured", lambda speed: speed["measured"]["median"], "measured (x)"),
        Column(("measured_low", "measured_high"), measured_range, "of seeds", ".2f"),
        Column(("timed",), timed_words, "by"),
        speed_column("tokens", lambda speed: speed["tokens"]),
    ]
    for runtime in common_runtimes(compared):
        words = RUNTIME_NAMES[runtime]
        columns.append(speed_column(f"{runtime}_measured", ratio_by(runtime), f"{words} (x)"))
        for metric in metrics:
            head = f"{metric.title}, {words}" if metric is metrics[0] else ""
            columns.append(speed_column(f"{runtime}_{metric.name}", score_by(runtime, metric.name), head))
    return columns


def ratio_by(runtime: str) -> Callable[[SpeedRecord], float]:
    return lambda speed: speed["runtimes"][runtime]["measured"]["median"]


def score_by(runtime: str, metric: str) -> Callable[[SpeedRecord], float | None]:
    return lambda speed: cast(dict[str, float], speed["runtimes"][runtime]).get(metric)


def int8_alone(compared: Compared, metric: Metric) -> list[str]:
    """The sentence on the unpruned model by int8, where it was measured."""
    if not {"ct2", "int8"} <= {*common_runtimes(compared)}:
        return []
    first = next(each["runtimes"] for group in compared.groups for each in speeds_of(group))
    before, after = (first[runtime].get("unpruned", {}).get(metric.name) for runtime in ("ct2", "int8"))
    if before is None or after is None:  # not on these lines
        return []
    return [
        f"By CTranslate2 int8 the unpruned model has {after:.2f} {metric.title} in place of {before:.2f} in "
        "fp32; rows have their speeds and scores by both."
    ]
