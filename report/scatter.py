"""The one figure of a metric against heads: for the systems of runs, comparisons, curves of pruning and the
search for the fewest heads.

A series is a method's points with their intervals, in the colour and marker of report/palette.py. Fewer heads
are to the right, as on the report page.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from headgates.analysis.knee import SLACK
from headgates.analysis.metrics import BLEU, Metric
from headgates.report.drawing import WHITE_EDGE, Row, column, drawing, no_rows, number
from headgates.report.palette import GREY, RULE, SOFT, Look, curve_looks, look_of

SIZES = {"*": 10.0, "P": 7.5, "X": 7.5, "h": 8.0}
LEVELS = ((1, 2), (5, 2), (3, 2))  # dashes of the levels, in turn
NOTE_OFFSETS = ((-6, 5, "right"), (6, -12, "left"), (6, 5, "left"), (-6, -12, "right"))  # in points


Numbers = Sequence[float] | NDArray[Any]


@dataclass(frozen=True)
class Series:
    """Points of one method. joined: by a line; band: the intervals are one band, else a bar each; seeds:
    (heads, value) of single runs, marked in place of the points; notes: a text beside each point."""

    label: str
    look: Look
    heads: Numbers
    values: Numbers
    low: Numbers = ()
    high: Numbers = ()
    joined: bool = False
    band: bool = False
    marked: bool = True
    width: float = 1.5
    seeds: Sequence[tuple[float, float]] = ()
    notes: Sequence[str] = ()
    fill: Any = "full"


@dataclass(frozen=True)
class Panel:
    """One part of the figure. levels: label -> a value, drawn as a line across."""

    title: str
    series: Sequence[Series]
    levels: Mapping[str, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = None


def draw_scatter(
    grid: Sequence[Sequence[Panel]],
    path: str | Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    fewer: bool = True,
    logarithmic: bool = False,
    beside: Callable[[Axes], None] | None = None,
) -> None:
    """Write the panels to `path`.png and `path`.svg. fewer: heads fall to the right; logarithmic: both
    axes are, with a tick at every x; beside: draws one more panel at the right. Raises ValueError without a
    point."""
    panels = [panel for row in grid for panel in row]
    if not any(len(series.heads) for panel in panels for series in panel.series):
        raise no_rows("point")
    across = len(grid[0])
    size = (
        max(7.8, 4.6 * across) + 5.2 * (beside is not None),
        2.9 * len(grid) + (2.6 if across == 1 else 2),
    )
    with drawing(path, size=size, title=title) as figure:
        figure.suptitle(title or " ", x=0.01, ha="left", fontsize=13)  # takes its room; `drawing` writes it
        left, *right = figure.subfigures(1, 1 + (beside is not None), squeeze=False)[0]
        axes_grid = left.subplots(*(len(grid), len(grid[0])), squeeze=False, sharex=True, sharey="row")
        for axes_row, row in zip(axes_grid, grid, strict=True):
            for axes, panel in zip(axes_row, row, strict=True):
                draw_panel(axes, panel)
            axes_row[0].set_ylabel(ylabel)
        for axes in axes_grid[-1]:
            axes.set_xlabel(xlabel)
        if logarithmic:
            ticks = panels[0].series[0].heads
            for axes in axes_grid.flat:
                axes.loglog(base=2)
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
                axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter("{x:,g}")
                axes.minorticks_off()
        elif fewer:
            axes_grid[0, 0].invert_xaxis()
        for part in right:
            assert beside is not None
            beside(part.subplots())
        handles = {str(line.get_label()): line for panel in panels for line in legend_lines(panel)}
        columns = max(1, int(11 * size[0] / (6 + max(map(len, handles), default=0))))
        lines = list(handles.values())
        figure.legend(handles=lines, loc="outside lower center", ncols=columns, handlelength=2.6)
        figure.draw_without_rendering()  # the layout is made: notes can be measured
        for axes, panel in zip(axes_grid.flat, panels, strict=True):
            write_notes(axes, panel)


def draw_panel(axes: Axes, panel: Panel) -> None:
    for dash, value in zip(LEVELS * 9, panel.levels.values(), strict=False):
        axes.axhline(value, color=GREY.light, linestyle=(0, dash), linewidth=1.2, zorder=1)
    for order, series in enumerate(panel.series, start=3):
        colour = series.look.colour.light
        ends = (series.heads, series.low, series.high)
        if len(series.low) > 1 and series.band:
            axes.fill_between(*ends, color=colour, alpha=0.13, linewidth=0)
        elif len(series.low):
            axes.vlines(*ends, color=colour, alpha=0.55, linewidth=1.1, zorder=2)
        line = {"color": colour, "linestyle": series.look.line, "linewidth": series.width, "zorder": order}
        if series.joined:
            axes.plot(series.heads, series.values, **line)
        if series.marked:
            points = series.seeds or list(zip(series.heads, series.values, strict=True))
            axes.plot(*np.array(points).T, zorder=order, **marks(series))
    axes.set_title(panel.title, fontsize=9.5, color=SOFT.light)
    if panel.limits is not None:
        axes.set_ylim(panel.limits)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, color=RULE.light, linewidth=0.8)
    axes.set_axisbelow(True)


def marks(series: Series) -> dict[str, Any]:
    return {
        "color": series.look.colour.light,
        "marker": series.look.marker,
        "markersize": SIZES.get(series.look.marker, 6.5),
        "linestyle": "none",
        "fillstyle": series.fill,
        "markerfacecoloralt": "white",
    }


def legend_lines(panel: Panel) -> list[Line2D]:
    lines = []
    for series in panel.series:
        line = {"linestyle": series.look.line, "linewidth": series.width} if series.joined else {}
        mark = marks(series) if series.marked else {"color": series.look.colour.light}
        if series.label:
            lines.append(Line2D([], [], label=series.label, **mark | line))
    for name, dash in zip(panel.levels, LEVELS * 9, strict=False):
        lines.append(Line2D([], [], label=name, color=GREY.light, linestyle=(0, dash)))
    return lines


def write_notes(axes: Axes, panel: Panel) -> None:
    """Write each note beside its point, where it covers neither a marker nor another note."""
    points = [point for each in panel.series for point in zip(each.heads, each.values, strict=True)]
    centres: Any = axes.transData.transform(points) if points else []
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in centres]
    inside = axes.get_window_extent()
    for series in panel.series:
        for text, *point in zip(series.notes, series.heads, series.values, strict=False):
            for right, up, side in NOTE_OFFSETS if text else ():
                look: Any = {"fontsize": 8.5, "path_effects": WHITE_EDGE, "zorder": 99, "in_layout": False}
                look |= {"ha": side, "xytext": (right, up), "textcoords": "offset points"}
                note = axes.annotate(text, (point[0], point[1]), **look)
                box = note.get_window_extent()
                corners = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
                if corners and not box.count_overlaps(taken):
                    taken.append(box)
                    break
                note.remove()


# ---------------------------------------------------------------- curves and the fewest heads


def draw_curves(
    curves: Mapping[str, Sequence[Row]],
    path: str | Path,
    *,
    metric: Metric = BLEU,
    split: str = "test",
    points: Sequence[Row] = (),
    title: str = "",
) -> None:
    """Draw the metric on `split` against the share of closed heads (%), with the band of its 95% interval.

    For a curve of several seeds the line is their mean, and the band reaches from the lowest to the highest
    seed. points: models beside the curves, each with label, heads_open, heads_total, the metric and, if
    known, the ends of its interval: bleu, bleu_low and bleu_high. Raises ValueError without a row."""
    measured = f"{split}_{metric.name}"
    looks = curve_looks([name for name, rows in curves.items() if rows])
    series = [pruning_series(name, curves[name], measured, look) for name, look in looks.items()]
    unpruned = {each.values[0] for each in series if each.heads[0] == 0}
    ends = [f"{metric.name}{end}" for end in ("", "_low", "_high")]
    for point in points if series else ():
        x = 100 * (1 - number(point["heads_open"]) / number(point["heads_total"]))
        value, low, high = (number(point.get(name)) for name in ends)
        lows, highs = ([low], [high]) if math.isfinite(low + high) else ([], [])
        notes = [str(point["label"])]
        series.append(Series("learned gates", look_of("l0"), [x], [value], lows, highs, notes=notes))
    levels = {"unpruned": unpruned.pop()} if len(unpruned) == 1 else {}
    note = "bands: 95% intervals; of several seeds, from the lowest to the highest around their mean"
    top = max([1.0, *(value for each in series for value in (*each.values, *each.high))])
    set_name = "validation" if split == "valid" else split
    draw_scatter(
        [[Panel(note, series, levels, (-0.02 * top, 1.05 * top))]],
        path,
        title=title,
        xlabel="heads closed (%)",
        ylabel=f"{metric.title}, {set_name} set",
        fewer=False,
    )


def pruning_series(name: str, rows: Sequence[Row], measured: str, look: Look) -> Series:
    shares = sorted({number(row["closed_share"]) for row in rows})
    at = [[row for row in rows if number(row["closed_share"]) == share] for share in shares]
    seeds = len({str(row.get("seed") or "") for row in rows})
    ends = ("", "") if seeds > 1 else ("_low", "_high")
    low, high = (
        [float(edge(column(group, measured + end))) for group in at]
        for edge, end in zip((np.min, np.max), ends, strict=True)
    )
    means = [float(column(group, measured).mean()) for group in at]
    label = f"{name}, {seeds} seeds" if seeds > 1 else name
    x = [100 * share for share in shares]
    return Series(label, look, x, means, low, high, joined=True, band=True, marked=len(x) <= 30)


def draw_knee(rows: Sequence[Row], path: str | Path, *, metric: Metric, limit: float, title: str) -> None:
    """Draw what is lost at each number of heads up to the one-sided bound, what is accepted, and the fewest
    heads. rows: those of curve.csv; limit: the accepted mean loss, in points."""
    ordered = sorted(rows, key=lambda row: int(row["heads_open"]))
    heads, lost, bounds = (column(ordered, name) for name in ("heads_open", "drop", "drop_bound"))
    fewest = next((i for i, row in enumerate(ordered) if str(row["acceptable"]) == "True"), None)
    notes = [""] * len(ordered)
    if fewest is not None:
        notes[fewest] = f"{ordered[fewest]['heads_open']} of {ordered[fewest]['heads_total']} heads"
    label, look = "mean, up to the one-sided 95% bound", look_of("l0")
    mean = Series(label, look, heads, -lost, -lost, -bounds, joined=True, notes=notes)
    levels = {f"accepted mean, {limit:g}": -limit, f"accepted bound, {limit + SLACK:g}": -limit - SLACK}
    total = ordered[0]["heads_total"] if ordered else ""
    draw_scatter(
        [[Panel("", [mean], levels)]],
        path,
        title=title,
        xlabel=f"open heads, of {total} (fewer to the right)",
        ylabel=f"{metric.title} minus that of the reference",
    )
