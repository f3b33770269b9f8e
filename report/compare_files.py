"""Write a comparison: compare.csv (a row a run), compare.md, compare.json with what made it, compare.png and
.svg.

compare.json: {"title", "base", "base_hash", "metric", what made the table, "summary": [sentences], "ranks":
{epochs: {label: rank}}, "groups": [a row for each point, over its seeds], "leads": [learned gates minus each
other method at as many heads with as much training], "failed": [points without a run], "runs": {run: what
made it}}
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from typing import Any

from headgates.analysis.metrics import Metric
from headgates.configs.closing import ABLATIONS, RECONSTRUCTIONS, ZERO
from headgates.configs.kinds import KINDS
from headgates.configs.systems import BASES, label
from headgates.models.progress import Report
from headgates.records.folder import RunFolder
from headgates.records.row import PARTS, Measure, ResultRow
from headgates.records.table import Row, markdown_table, write_table
from headgates.report.bleu_heads import made_by, runs_provenance, tell_files
from headgates.report.compare_groups import Compared, Group, MadePoint
from headgates.report.compare_speeds import (
    at_speeds,
    int8_alone,
    speed_cells,
    speed_columns,
    speed_row,
    speeds_of,
)
from headgates.report.compare_summary import summary, trained
from headgates.report.drawing import no_rows
from headgates.report.palette import look_of
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.table import (
    SIZE,
    beside_heads,
    interval_text,
    measure_cells,
    search_title,
    show,
    size_cells,
)

NAME = "compare"


def write_compared(
    compared: Compared,
    folder: RunFolder,
    *,
    metrics: Sequence[Metric],
    title: str,
    about: Mapping[str, Any],
    runs: Mapping[str, dict[str, Any]],
    failed: Sequence[str] = (),
    report: Report,
) -> list[str]:
    """Write all files into the folder, and return the sentences of the summary.

    about: further entries of compare.json, such as the base; runs: name -> result.json of each run; failed:
    points that have none."""
    sentences = [*summary(compared, metric=metrics[0].title), *int8_alone(compared, metrics[0])]
    groups = in_order(compared)
    points = [point for group in groups for point in group.points]
    write_table(folder, f"{NAME}.csv", [point_row(point, metrics) for point in points])
    folder.write_text(f"{NAME}.md", "\n".join(markdown(compared, metrics, sentences, title, failed)))
    draw_compared(compared, folder / NAME, metric=metrics[0].title, title=title)
    content = {
        "title": title,
        "metric": metrics[0].title,
        **about,
        **made_by(),
        "summary": sentences,
        "ranks": {
            str(epochs): compared.ranks(epochs) for epochs in compared.all_epochs if not compared.unlearned
        },
        "groups": [group_row(group, compared, metrics) for group in groups],
        "leads": leads(compared),
        "failed": list(failed),
        "open_heads": {f"{point.run}/{point.row.system}": point.row.heads_by_site for point in points},
        "runs": runs_provenance(runs),
    }
    folder.write_json(f"{NAME}.json", content)
    tell_files(folder.path, NAME, report)
    return sentences


def in_order(compared: Compared) -> list[Group]:
    """The bases, then by training, heads and neurons (the most first) and score (the best first)."""
    bases = [compared.base, *compared.continued.values()]

    def place(group: Group) -> Any:
        return group.epochs, -group.heads, -(group.first.row.neurons_open or 0), -group.mean, group.label

    return bases + sorted(compared.groups, key=place)


def comparisons_of(base: RunFolder) -> list[dict[str, Any]]:
    """The comparisons beside a base that are of it, by name: title, summary, a row for each point, and the
    figure as an address that holds it. One whose file is broken or gone is left out: it can be written again,
    and no page must wait for it."""
    found = []
    for path in sorted(base.path.resolve().parent.glob(f"compare-*/{NAME}.json")):
        folder = RunFolder(path.parent)
        with suppress(ValueError, OSError, KeyError):
            content = folder.read_json(f"{NAME}.json")
            if content["base_hash"] != base.run_hash():
                continue
            svg = b64encode((folder / f"{NAME}.svg").read_bytes()).decode()
            found.append(
                {
                    "name": path.parent.name,
                    "title": content["title"],
                    "summary": content["summary"],
                    "points": content["groups"],
                    "figure": f"data:image/svg+xml;base64,{svg}",
                }
            )
    return found


# ---------------------------------------------------------------- rows


def point_row(point: MadePoint, metrics: Sequence[Metric]) -> Row:
    """What a run is, its metrics with intervals, and its difference from the reference of its own run."""
    row, main = point.row, metrics[0].name
    low, high = row.main.ci95 or (None, None)
    difference_low, difference_high = row.main.difference_ci95 or (None, None)
    return {
        "method": point.method,
        "ablation": point.closing if point.closing in ABLATIONS else ZERO,
        "reconstruct": point.closing if point.closing in RECONSTRUCTIONS else None,
        "learned": int(point.learned),
        "epochs": point.epochs,
        "seed": point.seed,
        "heads_asked": point.asked,
        "neurons_asked": point.neurons,
        "speedup": point.speedup,
        "lambda": point.lam,
        "heads_open": row.heads_open,
        "heads_total": row.heads_total,
        "neurons_open": row.neurons_open,
        "neurons_total": row.neurons_total,
        **{kind: row.heads_by_kind.get(kind, 0) for kind in KINDS},
        main: row.main.value,
        f"{main}_low": low,
        f"{main}_high": high,
        "reference": row.reference,
        "difference": row.main.difference,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "p_value": row.main.p_value,
        **{metric.name: row.measures[metric.name].value for metric in metrics[1:]},
        "length": point.scored.length,
        "loss": point.loss,
        **{f"{part}_seconds": (row.compute or {}).get(part) for part in PARTS},
        "run": point.run,
        "system": row.system,
    }


def group_row(group: Group, compared: Compared, metrics: Sequence[Metric]) -> Row:
    """A point over its seeds, as compare.json and the page have it: mean, range, intervals, and the paired
    difference from the reference of so much training. What is not known is left out."""
    reference = compared.reference(group.epochs)
    compared_with = (
        {}
        if group.label in BASES or compared.unlearned
        else {"reference": reference.label, **compared.from_reference(group.epochs)[group].columns}
    )
    row = {
        "method": group.label,
        "learned": group.first.learned,
        "epochs": group.epochs,
        "heads": group.heads,
        "neurons": group.first.row.neurons_open,
        "lambda": group.first.lam,
        "seeds": len(group.points),
        "value": group.mean,
        "lowest": group.range[0],
        "highest": group.range[1],
        "low": group.interval[0],
        "high": group.interval[1],
        **compared_with,
        **{metric.name: group.mean_of(metric.name) for metric in metrics[1:]},
        "length": group.length,
        "loss": group.loss,
        **speed_row(group, compared, metrics),
        **{name: group.mean_size(name) for name in SIZE},
        **{f"{part}_seconds": group.seconds_of(part) for part in PARTS},
    }
    return {name: value for name, value in row.items() if value is not None}


def leads(compared: Compared) -> list[Row]:
    """The paired differences of learned gates from every other method with as many heads and as much
    training; none where a base learned nothing."""
    rows: list[Row] = []
    for epochs in [] if compared.unlearned else compared.all_epochs:
        for size in compared.sizes_asked(epochs):
            groups = compared.at(epochs, size)
            numbers = {"heads": size[0], "neurons": size[1]}
            asked = {name: number for name, number in numbers.items() if number is not None}
            for group, other in product(groups, groups):
                if group.first.learned and other is not group:
                    named = {"method": group.label, "against": other.label, "epochs": epochs, **asked}
                    found = compared.pair(group, other).columns
                    overlap = group.overlap(other)
                    rows.append(named | found | ({} if overlap is None else {"overlap": overlap}))
    return rows


# ---------------------------------------------------------------- words


def group_tables(
    compared: Compared, metrics: Sequence[Metric]
) -> dict[int, tuple[list[str], list[list[str]]]]:
    """epochs -> the head and the rows of its table: the groups of so much training, after the bases that they
    are compared with."""
    first, *others = metrics
    points = [point.row for group in in_order(compared) for point in group.points]
    beside = beside_heads(points)
    head = ["method", "heads", *beside, "seeds", "of seeds", first.title, "95%"]
    head += [metric.title for metric in others]
    head += ["difference", "95%", "p (Holm)", *speed_columns(compared, first)]
    head += ["length", "valid. loss", "heads shared", *SIZE]
    head += [f"{part} (s)" for part in PARTS]
    tables = {}
    for epochs in compared.all_epochs:
        bases, reference = (compared.base, compared.continued.get(epochs)), compared.reference(epochs)
        differences = compared.from_reference(epochs)
        rows = []
        for group in in_order(compared):
            if group not in bases and (group.label in BASES or group.epochs != epochs):
                continue
            main = Measure(group.mean, "", group.interval)
            if group not in bases and not compared.unlearned:
                gap = differences[group]
                main = Measure(group.mean, "", group.interval, gap.value, gap.interval, gap.p_holm)
            lam, seeds = group.first.lam, len(group.points)
            rows.append(
                [
                    group.label,
                    f"{group.heads:g}" if lam is None else f"{group.heads:.4g} (λ {lam:g})",
                    *(text(group.first.row) for text in beside.values()),
                    str(seeds),
                    interval_text(group.range, ".2f") if seeds > 1 else "",
                    *measure_cells(
                        main,
                        (group.mean_of(metric.name) for metric in others),
                        is_reference=group is reference,
                    ),
                    *speed_cells(group, compared, first),
                    "" if group.length is None else f"{group.length:.2f}",
                    "" if group.loss is None else f"{group.loss:.4f}",
                    nearest(group, compared),
                    *size_cells(*map(group.mean_size, SIZE)),
                    *("" if (s := group.seconds_of(part)) is None else f"{s:.0f}" for part in PARTS),
                ]
            )
        tables[epochs] = head, rows
    return tables


def nearest(group: Group, compared: Compared) -> str:
    """The method whose open heads are most like the group's, and their Jaccard overlap: two methods with the
    same heads are one choice."""
    if group.label in BASES or group.first.asked is None:
        return ""
    others = [other for other in compared.at(group.epochs, group.first.size) if other is not group]
    found = [(overlap, o.label) for o in others if (overlap := group.overlap(o)) is not None]
    return "{:.2f} {}".format(*max(found)) if found else ""


def markdown(
    compared: Compared, metrics: Sequence[Metric], sentences: Sequence[str], title: str, failed: Sequence[str]
) -> list[str]:
    """The lines of compare.md."""
    lines = [f"# {title}", "", *(f"- {sentence}" for sentence in sentences)]
    lines += [*(f"- no run: {name}" for name in failed), ""]
    for epochs, table in group_tables(compared, metrics).items():
        lines += [f"## {trained(epochs).capitalize()}", "", *markdown_table(*table)]
    measures = compared.base.first.row.measures
    return [*lines, *(f"- {name} `{measure.signature}`" for name, measure in measures.items()), ""]


def show_compared(
    compared: Compared, sentences: Sequence[str], *, metrics: Sequence[Metric], title: str
) -> None:
    """Print the summary, then a table for each amount of training."""
    for sentence in sentences:
        print(sentence)
    for epochs, table in group_tables(compared, metrics).items():
        show(f"{title}, {search_title(compared.base.first.row.search)}{trained(epochs)}", *table)


# ---------------------------------------------------------------- figure


def draw_compared(compared: Compared, path: str | Path, *, metric: str, title: str) -> None:
    """Draw the metric against open heads, parameters or speed (`place_of`): a row of panels for each amount
    of training, a column for each closing. Raises ValueError without a point."""
    if not compared.groups:
        raise no_rows("point of a comparison")
    what = f"open heads of {compared.base.first.row.heads_total}"
    if with_neurons(compared):
        what = f"parameters in thousands, of {(compared.base.first.row.parameters or 0) / 1000:,.0f}"
    xlabel = f"{what} (fewer to the right)"
    if fast := at_speeds(compared):
        timed = next(each["timed"] for group in compared.groups for each in speeds_of(group))
        xlabel = f"times as fast as unpruned ({timed})"
    ylabel = ", ".join(filter(None, (metric, "test set", compared.base.first.row.search)))
    draw_scatter(panels(compared), path, title=title, xlabel=xlabel, ylabel=ylabel, fewer=not fast)


def panels(compared: Compared) -> list[list[Panel]]:
    """A line is the mean over seeds, its band the middle 95% of the bootstrap over sentences, a mark one
    seed. Learned gates close with zero and stand in the panels of every closing, thicker and on top."""
    closings = {group.first.closing for group in compared.groups if not group.first.learned} or {ZERO}

    def panel(epochs: int, closing: str) -> Panel:
        groups = [
            group
            for group in compared.groups
            if group.epochs == epochs and (group.first.learned or group.first.closing == closing)
        ]
        groups.sort(key=lambda group: (group.first.learned, group.first.method, -group.heads))
        series = [
            method_series(name, list(same), place_of(compared), fewer=not at_speeds(compared))
            for name, same in groupby(groups, lambda group: group.first.method)
        ]
        levels = {"base": compared.base.mean}
        if epochs in compared.continued:
            levels["base-continued"] = compared.continued[epochs].mean
        title = trained(epochs) + (f", closed heads: {closing}" if len(closings) > 1 else "")
        return Panel(title, series, levels)

    across = sorted(closings, key=lambda closing: (closing != ZERO, closing))
    return [[panel(epochs, closing) for closing in across] for epochs in compared.all_epochs]


def place_of(compared: Compared) -> Callable[[ResultRow], float]:
    """Where a model stands in the figure: by open heads, or by the thousands of its parameters where points
    differ in their feed-forward neurons, or by how many times as fast it is."""
    if at_speeds(compared):
        return lambda row: float(row.others["speed"]["measured"]["median"])
    if with_neurons(compared):
        return lambda row: (row.parameters or 0) / 1000
    return lambda row: row.heads_open


def with_neurons(compared: Compared) -> bool:
    """Whether points differ in their feed-forward neurons."""
    return any(group.first.row.neurons_open is not None for group in compared.groups)


def method_series(
    name: str, groups: Sequence[Group], place: Callable[[ResultRow], float], *, fewer: bool
) -> Series:
    """A method's groups, from the left, which is the most where x falls. place: of a model."""
    left = {group: fmean(place(point.row) for point in group.points) for group in groups}
    groups = sorted(groups, key=left.__getitem__, reverse=fewer)
    low, high = zip(*(group.interval for group in groups), strict=True)
    return Series(
        label(name),
        look_of(name),
        [left[group] for group in groups],
        [group.mean for group in groups],
        low,
        high,
        joined=True,
        band=True,
        width=2.2 if groups[0].first.learned else 1.3,
        seeds=[(place(point.row), point.row.main.value) for group in groups for point in group.points],
    )
