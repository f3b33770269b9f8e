"""Write a comparison: compare.csv (a row a run), compare.md, compare.json with what made it, compare.png and
.svg.

compare.json: {"title", "base", "base_hash", "metric", what made the table, "summary": [sentences], "ranks":
{epochs: {label: rank}}, "groups": [a row for each point, over its seeds], "leads": [learned gates minus each
other method at as many heads with as much training], "failed": [points without a run], "runs": {run: what
made it}}
"""

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headgates.analysis.metrics import Metric
from headgates.configs.schema import KINDS
from headgates.configs.scores import ZERO
from headgates.models.progress import Report
from headgates.report.bleu_heads import ENDS, made_by, made_of, made_table, move_figure
from headgates.report.compare_groups import BASES, Compared, Group, MadePoint
from headgates.report.compare_summary import summary, trained
from headgates.report.drawing import no_rows
from headgates.report.palette import look_of
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.table import interval_text, show
from headgates.workbench.folder import RunFolder
from headgates.workbench.table import Row, markdown_table, write_table

NAME = "compare"
ELSEWHERE = "comparisons.json"  # in a base: the comparisons on it that are not beside it
HEAD = ("method", "heads", "seeds", "of seeds", "95%", "difference", "95%", "p")
DIFFERENCE = ("difference", "difference_low", "difference_high", "p_value")


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
    sentences = summary(compared, metric=metrics[0].title)
    made, points = made_of(runs), [point for group in in_order(compared) for point in group.points]
    write_table(folder, f"{NAME}.csv", [point_row(point, metrics) for point in points])
    folder.write_text(f"{NAME}.md", "\n".join(markdown(compared, metrics, sentences, title, failed, made)))
    with TemporaryDirectory(dir=folder.path, prefix=".draft-") as drafts:  # a crash leaves the old one whole
        draw_compared(compared, Path(drafts) / NAME, metric=metrics[0].title, title=title)
        move_figure(Path(drafts) / NAME, folder.path)
    content = {
        "title": title,
        "metric": metrics[0].title,
        **about,
        **made_by(),
        "summary": sentences,
        "ranks": {str(epochs): compared.ranks(epochs) for epochs in compared.all_epochs},
        "groups": [group_row(group, compared, metrics) for group in in_order(compared)],
        "leads": [lead_row(*pair) for pair in learned_pairs(compared)],
        "failed": list(failed),
        "runs": made,
    }
    folder.write_json(f"{NAME}.json", content)
    for end, kind in ENDS.items():
        report(f"{kind}: {folder / f'{NAME}.{end}'}")
    return sentences


def in_order(compared: Compared) -> list[Group]:
    """The bases, then by training, heads (the most first) and score (the best first)."""
    bases = [compared.base, *compared.continued.values()]
    return bases + sorted(
        compared.groups, key=lambda group: (group.epochs, -group.heads, -group.mean, group.label)
    )


def comparisons_of(base: RunFolder) -> list[dict[str, Any]]:
    """The comparisons on a base, beside it or elsewhere, by name: title, summary, a row for each point, and
    the figure as an address that holds it. One whose file is broken or gone is left out: it can be written
    again, and no page must wait for it."""
    found = []
    place = base.path.resolve()
    beside = {path.parent for path in place.parent.glob(f"compare-*/{NAME}.json")}
    away = {(place / each).resolve() for each in elsewhere(base)}
    for where in sorted(beside | away, key=lambda path: (path.name, path)):
        folder = RunFolder(where)
        with suppress(ValueError, OSError, KeyError):
            content = folder.read_json(f"{NAME}.json")
            if content["base_hash"] != base.run_hash():
                continue
            svg = b64encode((folder / f"{NAME}.svg").read_bytes()).decode()
            found.append(
                {
                    "name": where.name,
                    "title": content["title"],
                    "summary": content["summary"],
                    "points": [
                        {name: value for name, value in row.items() if value is not None}
                        for row in content["groups"]
                    ],
                    "figure": f"data:image/svg+xml;base64,{svg}",
                }
            )
    return found


def note_comparison(base: RunFolder, folder: RunFolder) -> None:
    """Have the base know of a comparison whose folder is not beside its own, by the way there from it, so
    that both may move together."""
    place, where = base.path.resolve(), folder.path.resolve()
    way = os.path.relpath(where, place)
    if where.parent != place.parent and way not in elsewhere(base):
        base.write_json(ELSEWHERE, {"folders": [*elsewhere(base), way]})


def elsewhere(base: RunFolder) -> list[str]:
    """The comparisons that `note_comparison` noted; none where its file is broken, as it can be written
    again."""
    with suppress(ValueError, OSError):
        ways = base.read_json(ELSEWHERE).get("folders")
        if isinstance(ways, list) and all(isinstance(way, str) for way in ways):
            return ways
    return []


# ---------------------------------------------------------------- rows


def point_row(point: MadePoint, metrics: Sequence[Metric]) -> Row:
    """What a run is, its metrics with intervals, and its difference from the reference of its own run."""
    row, main = point.row, metrics[0].name
    low, high = row.main.ci95 or (None, None)
    compared = (row.main.difference, *(row.main.difference_ci95 or (None, None)), row.main.p_value)
    return {
        "method": point.method,
        "closing": point.closing,
        "learned": int(point.learned),
        "epochs": point.epochs,
        "seed": point.seed,
        "heads_asked": point.asked,
        "lambda": point.lam,
        "heads_open": row.heads_open,
        "heads_total": row.heads_total,
        **{kind: row.heads_by_kind.get(kind, 0) for kind in KINDS},
        main: row.main.value,
        f"{main}_low": low,
        f"{main}_high": high,
        "reference": row.reference,
        **dict(zip(DIFFERENCE, compared, strict=True)),
        **{metric.name: row.measures[metric.name].value for metric in metrics[1:]},
        "loss": point.loss,
        "run": point.run,
        "system": row.system,
    }


def group_row(group: Group, compared: Compared, metrics: Sequence[Metric]) -> Row:
    """A point over its seeds: mean, range, intervals, and the paired difference from the reference of so much
    training."""
    reference = compared.reference(group.epochs)
    of_base = group.method in BASES
    return {
        "method": group.label,
        "learned": group.learned,
        "epochs": group.epochs,
        "heads": group.heads,
        "lambda": group.lam,
        "seeds": len(group.points),
        "value": group.mean,
        "lowest": group.range[0],
        "highest": group.range[1],
        "low": group.interval[0],
        "high": group.interval[1],
        "reference": None if of_base else reference.label,
        **(dict.fromkeys(DIFFERENCE) if of_base else difference_columns(group, reference)),
        **{metric.name: group.mean_of(metric.name) for metric in metrics[1:]},
        "loss": group.loss,
    }


def difference_columns(group: Group, other: Group) -> Row:
    found = group.minus(other)
    return dict(zip(DIFFERENCE, (found.value, *found.interval, found.p), strict=True))


def learned_pairs(compared: Compared) -> list[tuple[Group, Group]]:
    """Groups of the same number of heads and the same training: learned gates, and another; of two learned
    ones the better first."""
    pairs = []
    for epochs in compared.all_epochs:
        for heads in compared.counts_asked(epochs):
            groups = compared.at(epochs, heads)
            for place, group in enumerate(groups):
                others = [better for better in groups[:place] if not better.learned] + groups[place + 1 :]
                pairs += [(group, other) for other in others if group.learned]
    return pairs


def lead_row(group: Group, other: Group) -> Row:
    """The paired difference of one group from another."""
    named = {"method": group.label, "against": other.label, "epochs": group.epochs, "heads": group.heads}
    return named | difference_columns(group, other)


# ---------------------------------------------------------------- words


def group_cells(group: Group, compared: Compared, metrics: Sequence[Metric]) -> list[str]:
    """The cells of a table's row: HEAD with the score after the seeds, then the other metrics and the
    validation loss."""
    heads = f"{group.heads:g}" if group.lam is None else f"{group.heads:.4g} (λ {group.lam:g})"
    several = len(group.points) > 1
    cells = [
        group.label,
        heads,
        str(len(group.points)),
        f"{group.mean:.2f}",
        interval_text(group.range, ".2f") if several else "",
    ]
    cells.append(interval_text(group.interval, ".1f"))
    if group.method in BASES:
        cells += ["reference" if group is compared.reference(group.epochs) else "", "", ""]
    else:
        difference = group.minus(compared.reference(group.epochs))
        cells += [f"{difference.value:+.2f}", interval_text(difference.interval), f"{difference.p:.3f}"]
    others = [f"{group.mean_of(metric.name):.2f}" for metric in metrics[1:]]
    return [*cells, *others, "" if group.loss is None else f"{group.loss:.4f}"]


def table_head(metrics: Sequence[Metric]) -> list[str]:
    return [*HEAD[:3], metrics[0].title, *HEAD[3:], *(metric.title for metric in metrics[1:]), "valid. loss"]


def groups_with(compared: Compared, epochs: int) -> list[Group]:
    """The groups of so much training, after the bases that they are compared with."""
    of_base = (compared.base, compared.continued.get(epochs))
    return [
        group
        for group in in_order(compared)
        if group in of_base or (group.method not in BASES and group.epochs == epochs)
    ]


def markdown(
    compared: Compared,
    metrics: Sequence[Metric],
    sentences: Sequence[str],
    title: str,
    failed: Sequence[str],
    made: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """The lines of compare.md."""
    lines = [f"# {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    lines += [f"- no run: {name}" for name in failed] + [""] * bool(failed)
    for epochs in compared.all_epochs:
        rows = (group_cells(group, compared, metrics) for group in groups_with(compared, epochs))
        lines += [f"## {trained(epochs).capitalize()}", "", *markdown_table(table_head(metrics), rows)]
        if ranks := compared.ranks(epochs):
            rank_rows = ([label, f"{rank:.2f}"] for label, rank in ranks.items())
            lines += markdown_table(["method", "mean rank"], rank_rows)
    measures = compared.base.points[0].row.measures
    known = [metric for metric in metrics if metric.name in measures]
    lines += [f"- {metric.title} `{measures[metric.name].signature}`" for metric in known]
    return [*lines, "", *made_table(made)]


def show_compared(
    compared: Compared, sentences: Sequence[str], *, metrics: Sequence[Metric], title: str
) -> None:
    """Print the summary, then a table for each amount of training."""
    for sentence in sentences:
        print(sentence)
    for epochs in compared.all_epochs:
        rows = (group_cells(group, compared, metrics) for group in groups_with(compared, epochs))
        show(f"{title}, {trained(epochs)}", table_head(metrics), rows)


# ---------------------------------------------------------------- figure


def draw_compared(compared: Compared, path: str | Path, *, metric: str, title: str) -> None:
    """Draw the metric against open heads, a row of panels for each amount of training and a column for each
    closing. Raises ValueError without a point."""
    if not compared.groups:
        raise no_rows("point of a comparison")
    draw_scatter(
        panels(compared),
        path,
        title=title,
        xlabel=f"open heads of {compared.base.points[0].row.heads_total} (fewer to the right)",
        ylabel=f"{metric}, test set",
    )


def panels(compared: Compared) -> list[list[Panel]]:
    """A line is the mean over seeds, its band the middle 95% of the bootstrap over sentences, a mark one
    seed. Learned gates close with zero and stand in the panels of every closing, thicker and on top."""
    scores = [group for group in compared.groups if not group.learned]
    closings = list(dict.fromkeys(group.closing for group in scores)) or [compared.groups[0].closing]
    closings.sort(key=lambda closing: closing != ZERO)

    def panel(epochs: int, closing: str) -> Panel:
        groups = [
            group
            for group in compared.groups
            if group.epochs == epochs and (group.learned or group.closing == closing)
        ]
        groups.sort(key=lambda group: (group.learned, group.method, -group.heads))
        series = [method_series(list(same)) for _, same in groupby(groups, key=lambda group: group.method)]
        levels = {"base": compared.base.mean}
        if epochs in compared.continued:
            levels["base-continued"] = compared.continued[epochs].mean
        title = trained(epochs) + (f", closed heads: {closing}" if len(closings) > 1 else "")
        return Panel(title, series, levels)

    return [[panel(epochs, closing) for closing in closings] for epochs in compared.all_epochs]


def method_series(groups: Sequence[Group]) -> Series:
    """A method's groups, the most heads first."""
    first = groups[0]
    low, high = zip(*(group.interval for group in groups), strict=True)
    return Series(
        first.method,
        look_of(first.method),
        [group.heads for group in groups],
        [group.mean for group in groups],
        low,
        high,
        joined=True,
        band=True,
        width=2.2 if first.learned else 1.3,
        seeds=[(point.row.heads_open, point.row.main.value) for group in groups for point in group.points],
    )
