"""Draw a comparison: the score against open heads for every method, a panel for each amount of training and
each closing.

A line is the mean over seeds, its band the middle 95% of the bootstrap over sentences, a point one seed.
Learned gates close with zero and stand in the panels of every closing, thicker, so that each score is seen
beside them. Colours are those of report/palette.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from headgates.configs.scores import ZERO
from headgates.report.bleu_heads_figure import SIZES
from headgates.report.compare_groups import Compared, Group
from headgates.report.compare_summary import trained
from headgates.report.drawing import drawing, no_rows
from headgates.report.palette import GREY, RULE, SOFT, look_of

PANEL = (4.6, 3.7)  # inches
BASE: Any = {"color": GREY.light, "linestyle": (0, (1, 2)), "linewidth": 1.2, "zorder": 1}
CONTINUED: Any = {"color": GREY.light, "linestyle": (0, (5, 2)), "linewidth": 1.2, "zorder": 1}


@dataclass(frozen=True)
class Curve:
    """A method in a panel. heads, mean, low, high: (points,), the most heads first; seeds: (heads, score) of
    every run."""

    method: str
    learned: bool
    heads: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: list[tuple[int, float]]


@dataclass(frozen=True)
class Panel:
    """One part of the figure. closing: of the scores; learned gates stand in every panel."""

    epochs: int
    closing: str
    title: str
    curves: list[Curve]


def panels(compared: Compared) -> list[list[Panel]]:
    """The panels in rows of the same training and columns of the same closing."""
    scores = [group for group in compared.groups if not group.learned]
    closings = list(dict.fromkeys(group.closing for group in scores)) or [compared.groups[0].closing]
    closings.sort(key=lambda closing: closing != ZERO)

    def panel(epochs: int, closing: str) -> Panel:
        title = trained(epochs) + (f", closed heads: {closing}" if len(closings) > 1 else "")
        return Panel(epochs, closing, title, curves_of(compared, epochs, closing))

    return [[panel(epochs, closing) for closing in closings] for epochs in compared.all_epochs]


def curves_of(compared: Compared, epochs: int, closing: str) -> list[Curve]:
    """The curves of one panel, learned gates last, so that they are drawn on top."""
    by_method: dict[str, list[Group]] = {}
    for group in compared.groups:
        if group.epochs == epochs and (group.learned or group.closing == closing):
            by_method.setdefault(group.method, []).append(group)
    return [
        curve_of(method, groups)
        for method, groups in sorted(by_method.items(), key=lambda pair: (pair[1][0].learned, pair[0]))
    ]


def curve_of(method: str, groups: Sequence[Group]) -> Curve:
    ordered = sorted(groups, key=lambda group: -group.heads)
    low, high = zip(*(group.interval for group in ordered), strict=True)
    seeds = [(point.row.heads_open, point.row.main.value) for group in ordered for point in group.points]
    means = [group.mean for group in ordered]
    return Curve(
        method, ordered[0].learned, [group.heads for group in ordered], means, list(low), list(high), seeds
    )


def draw_compared(compared: Compared, path: str | Path, *, metric: str, title: str) -> None:
    """Write the figure to `path`.png and `path`.svg. metric: its title. Raises ValueError without a point."""
    if not compared.groups:
        raise no_rows("point of a comparison")
    rows = panels(compared)
    size = (max(7.0, PANEL[0] * len(rows[0])), PANEL[1] * len(rows) + 1.3)
    total = compared.base.points[0].row.heads_total
    with drawing(path, size=size, title=title) as figure:
        grid = figure.subplots(len(rows), len(rows[0]), squeeze=False, sharex=True, sharey="row")
        for axes_row, panel_row in zip(grid, rows, strict=True):
            for axes, panel in zip(axes_row, panel_row, strict=True):
                draw_panel(axes, panel, compared)
            axes_row[0].set_ylabel(f"{metric}, test set")
        for axes in grid[-1]:
            axes.set_xlabel(f"open heads of {total} (fewer to the right)")
        handles = legend_handles([panel for row in rows for panel in row], compared)
        figure.legend(handles=handles, loc="outside lower center", ncols=int(size[0] / 2), handlelength=2.2)
        figure.suptitle(
            title, x=0.01, ha="left", fontsize=13
        )  # for the room that it takes; `drawing` writes it


def draw_panel(axes: Axes, panel: Panel, compared: Compared) -> None:
    axes.axhline(compared.base.mean, **BASE)
    if panel.epochs in compared.continued:
        axes.axhline(compared.continued[panel.epochs].mean, **CONTINUED)
    for curve in panel.curves:
        look = look_of(curve.method)
        colour, width, zorder = look.colour.light, 2.2 if curve.learned else 1.3, 5 if curve.learned else 3
        axes.fill_between(
            curve.heads, curve.low, curve.high, color=colour, alpha=0.13, linewidth=0, zorder=zorder - 1
        )
        axes.plot(curve.heads, curve.mean, color=colour, linestyle=look.line, linewidth=width, zorder=zorder)
        x, y = np.array(curve.seeds).T
        size = 0.75 * SIZES.get(look.marker, 6.5)
        axes.plot(
            x,
            y,
            color=colour,
            marker=look.marker,
            markersize=size,
            linestyle="none",
            alpha=0.8,
            zorder=zorder + 1,
        )
    axes.set_title(panel.title, fontsize=10, color=SOFT.light)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, color=RULE.light, linewidth=0.8)
    axes.set_axisbelow(True)
    if not axes.xaxis_inverted():  # the axes of all panels are one
        axes.invert_xaxis()


def legend_handles(all_panels: Sequence[Panel], compared: Compared) -> list[Line2D]:
    """The methods that are drawn, learned gates first, then the bases."""
    curves = {curve.method: curve for panel in all_panels for curve in panel.curves}
    handles = []
    for curve in sorted(curves.values(), key=lambda curve: (not curve.learned, curve.method)):
        look = look_of(curve.method)
        marks: Any = {
            "color": look.colour.light,
            "marker": look.marker,
            "linestyle": look.line,
            "linewidth": 2.2 if curve.learned else 1.3,
        }
        handles.append(Line2D([], [], label=curve.method, markersize=6, **marks))
    handles.append(Line2D([], [], label="base", **BASE))
    return handles + ([Line2D([], [], label="base-continued", **CONTINUED)] if compared.continued else [])
