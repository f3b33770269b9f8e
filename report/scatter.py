"""The one figure of points with their intervals: a metric against heads, for the systems of runs, comparisons
and curves of pruning, and whatever else has points.

A series is a method's points, in the colour and marker of report/palette.py. Where x counts open heads, fewer
heads are to the right, as on the report page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from headgates.report.drawing import WHITE_EDGE, drawing, no_rows
from headgates.report.palette import GREY, RULE, SOFT, Look

MARKER_SIZES = {"*": 10.0, "P": 7.5, "X": 7.5, "h": 8.0}
LEVELS = ((1, 2), (5, 2), (3, 2)) * 3  # dashes of the levels, in turn
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

    @property
    def mark(self) -> dict[str, Any]:
        """The marker and the line between markers, as matplotlib has them."""
        return {
            "color": self.look.colour.light,
            "marker": self.look.marker if self.marked else "",
            "markersize": MARKER_SIZES.get(self.look.marker, 6.5),
            "fillstyle": self.fill,
            "markerfacecoloralt": "white",
            "linestyle": self.look.line if self.joined else "none",
            "linewidth": self.width,
        }


@dataclass(frozen=True)
class Panel:
    """One part of the figure. levels: label -> a value, drawn as a line across; limits: of y."""

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
    ticks: Mapping[float, str] | None = None,
    share: bool = True,
) -> None:
    """Write the panels to `path`.png and `path`.svg. fewer: x falls to the right; ticks: the labels of
    x; share: panels share their axes. Raises ValueError without a point."""
    panels = [panel for row in grid for panel in row]
    if not any(len(series.heads) for panel in panels for series in panel.series):
        raise no_rows("point")
    across = len(grid[0])
    size = max(7.8, 4.6 * across), 2.9 * len(grid) + (2.6 if across == 1 else 2)
    with drawing(path, size=size, title=title) as figure:
        axes_grid: Any = figure.subplots(
            len(grid), across, squeeze=False, sharex=share, sharey="row" if share else False
        )
        for axes, panel in zip(axes_grid.flat, panels, strict=True):
            draw_panel(axes, panel)
            axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=share))
            if ticks:
                turned = 60 * (max(map(len, ticks.values())) > 8)
                axes.set_xticks(list(ticks), list(ticks.values()), rotation=turned)
        for axes in axes_grid[:, 0]:
            axes.set_ylabel(ylabel)
        for axes in axes_grid[-1]:
            axes.set_xlabel(xlabel)
        if fewer:
            axes_grid[0, 0].invert_xaxis()
        handles = {str(line.get_label()): line for panel in panels for line in legend_lines(panel)}
        columns = max(1, int(11 * size[0] / (6 + max(map(len, handles), default=0))))
        lines = list(handles.values())
        figure.legend(handles=lines, loc="outside lower center", ncols=columns, handlelength=2.6)
        figure.draw_without_rendering()  # the layout is made: notes can be measured
        for axes, panel in zip(axes_grid.flat, panels, strict=True):
            write_notes(axes, panel)


def draw_panel(axes: Axes, panel: Panel) -> None:
    for dash, value in zip(LEVELS, panel.levels.values(), strict=False):
        axes.axhline(value, color=GREY.light, linestyle=(0, dash), linewidth=1.2, zorder=1)
    for order, series in enumerate(panel.series, start=3):
        colour = series.look.colour.light
        ends = (series.heads, series.low, series.high)
        if len(series.low) > 1 and series.band:
            axes.fill_between(*ends, color=colour, alpha=0.13, linewidth=0)
        elif len(series.low):
            axes.vlines(*ends, color=colour, alpha=0.55, linewidth=1.1, zorder=2)
        if series.joined:
            axes.plot(series.heads, series.values, zorder=order, **series.mark | {"marker": ""})
        points = series.seeds or list(zip(series.heads, series.values, strict=True))
        axes.plot(*np.array(points).T, zorder=order, **series.mark | {"linestyle": "none"})
    axes.set_title(panel.title, fontsize=9.5, color=SOFT.light)
    if panel.limits:
        axes.set_ylim(panel.limits)
    axes.grid(True, color=RULE.light, linewidth=0.8)
    axes.set_axisbelow(True)


def legend_lines(panel: Panel) -> list[Line2D]:
    lines = [Line2D([], [], label=series.label, **series.mark) for series in panel.series if series.label]
    for name, dash in zip(panel.levels, LEVELS, strict=False):
        lines.append(Line2D([], [], label=name, color=GREY.light, linestyle=(0, dash)))
    return lines


def write_notes(axes: Axes, panel: Panel) -> None:
    """Write each note beside its point, where it covers neither a marker nor another note."""
    points = [point for each in panel.series for point in zip(each.heads, each.values, strict=True)]
    centres: Any = axes.transData.transform(points) if points else []
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in centres if np.isfinite(x + y)]
    inside = axes.get_window_extent()
    for series in panel.series:
        for text, *point in zip(series.notes, series.heads, series.values, strict=False):
            for right, up, side in NOTE_OFFSETS if text else ():
                note: Any = axes.annotate(
                    text,
                    point,  # type: ignore[arg-type]
                    (right, up),
                    textcoords="offset points",
                    ha=side,
                    fontsize=8.5,
                    path_effects=WHITE_EDGE,
                    zorder=99,
                    in_layout=False,
                )
                box = note.get_window_extent()
                corners = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
                if corners and not box.count_overlaps(taken):
                    taken.append(box)
                    break
                note.remove()
