"""The figure of a sweep: BLEU with its 95% interval against open heads, all systems of all runs, and the front of the learned gates.

Colours are Okabe and Ito's, a colour for each way to choose heads (as in report/pruning_figures.py) and a marker for each system, so that
grey print tells them apart too. Several bases, such as seeds, differ in how their markers are filled.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, ScaledTranslation, Transform

from configs.schema import KINDS
from report.drawing import WHITE_EDGE, Row, column, drawing, nothing, number

LOOKS = {  # system: colour, marker, points to the right, so that intervals at one number of heads stand side by side
    "l0": ("#D55E00", "o", 0.0),
    "greedy-finetuned": ("#000000", "s", 7.0),
    "greedy": ("#000000", "v", -7.0),
    "weight-norm-finetuned": ("#CC79A7", "D", 14.0),
    "weight-norm": ("#CC79A7", "^", -14.0),
    "random-finetuned": ("#0072B2", "P", 21.0),
    "random": ("#0072B2", "X", -21.0),
    "base": ("#777777", "*", 0.0),
    "base-continued": ("#777777", "h", 7.0),
}
FILLS = ("full", "none", "left", "right", "top", "bottom")  # a base each, in turn
SIZES = {"*": 10.0, "P": 7.5, "X": 7.5, "h": 8.0}
ENLARGED = 3  # times: where BLEU falls so much farther than in what is looked at, that has a panel of its own
PLACES = ((-6, 5, "right"), (6, -12, "left"), (6, 5, "left"), (-6, -12, "right"))  # of a label, in points from its marker


def draw_pareto(rows: Sequence[Row], path: str | Path, *, title: str = "") -> None:
    """Rows of `sweeps.pareto.rows`, or as a CSV reader gives them. `path` has no suffix: it gets .png and .svg.

    l0-soft and l0-removed are left out, which are l0 but for rounding, and rows that repeat a base's. Where some systems fall far below
    the front, the upper panel is enlarged and the lower one shows all. Raises ValueError without a row to draw."""
    shown = [row for row in rows if row["system"] in LOOKS and not str(row.get("same_as") or "").startswith("base")]
    if not shown:
        raise nothing("system of a finished run")
    bases = list(dict.fromkeys(str(row["base"]) for row in shown))
    whole, near = ranges(shown)
    with drawing(path, size=(8.4, 7.4 if near else 5.6), title=title) as figure:
        panels = list(figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1.0))) if near else [figure.subplots()]
        for axes, limits in zip(panels, (near or whole, whole), strict=False):
            draw_panel(axes, shown, bases)
            axes.set(ylim=limits, xlim=across(shown))
        totals = sorted({int(number(row["heads_total"])) for row in shown})
        panels[-1].set_xlabel(f"open heads, of {totals[0]}" if len(totals) == 1 else "open heads")
        panels[0].set_ylabel("BLEU, test set")
        panels[0].set_title(words(enlarged=near is not None), fontsize=9, color="#444444")
        if near:
            panels[1].set(ylabel="BLEU")
            panels[1].set_title("all systems", fontsize=9, color="#444444")
        figure.legend(handles=handles(shown, bases), loc="outside lower center", ncols=3, handlelength=2.2)
        figure.suptitle(title, x=0.01, ha="left", fontsize=13)  # for the room that it takes; `drawing` writes it
        label(figure, panels, shown)


def words(*, enlarged: bool) -> str:
    text = "bars: 95% intervals, side by side where heads are equal; line: the front, l0 or base that no other beats"
    return fill(("enlarged; " if enlarged else "") + text, 118)


def ranges(rows: Sequence[Row]) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Limits of BLEU for all rows, and of the upper part that is worth a panel of its own, or None where one panel shows all well."""
    bottom = lowest(rows)
    top = max(number(row["bleu_high"]) for row in rows)
    whole = (bottom - 0.04 * (top - bottom or 25), top + 0.04 * (top - bottom or 25))
    trained = [row for row in rows if row["system"] not in ("greedy", "random", "weight-norm")] or list(rows)
    low = lowest(trained)
    if top - low > (top - bottom) / 2:  # a few trained runs that collapsed must not flatten the others either
        upper = [row for row in trained if number(row["bleu"]) > top - (top - bottom) / 4]
        low = lowest(upper) if 2 * len(upper) > len(trained) else low
    if top - bottom <= ENLARGED * (top - low):
        return whole, None
    return whole, (low - 0.06 * (top - low), top + 0.06 * (top - low))


def lowest(rows: Sequence[Row]) -> float:
    return min(number(row["bleu_low"]) for row in rows)


def across(rows: Sequence[Row]) -> tuple[float, float]:
    heads = column(rows, "heads_open")
    room = 0.07 * max(float(np.ptp(heads)), 4.0)
    return float(heads.min()) - room, float(heads.max()) + room


def draw_panel(axes: Axes, rows: Sequence[Row], bases: Sequence[str]) -> None:
    one = len(bases) == 1
    for row in rows:
        if one and row["system"] == row.get("reference"):
            axes.axhline(number(row["bleu"]), color="#999999", linestyle=(0, (1, 2)), linewidth=1.2, zorder=1)
    for base in bases:
        line = front_line(rows, base)
        axes.plot(line[:, 0], line[:, 1], color=LOOKS["l0"][0], linewidth=1.8 if one else 1.1, alpha=0.9 if one else 0.65, zorder=3)
    for row in rows:
        colour, marker, _ = LOOKS[row["system"]]
        x, y, low, high = (number(row[name]) for name in ("heads_open", "bleu", "bleu_low", "bleu_high"))
        beside: Any = {"transform": beside_of(axes, row["system"])}
        zorder = 6 if row["system"] == "l0" else 5
        axes.plot([x, x], [low, high], color=colour, linewidth=1.1, alpha=0.55, zorder=zorder - 1, **beside)
        axes.plot([x], [y], zorder=zorder, **marker_look(colour, marker, bases.index(str(row["base"]))), **beside)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, color="#e8e8e8", linewidth=0.8)
    axes.set_axisbelow(True)


def front_line(rows: Sequence[Row], base: str) -> np.ndarray:
    """(points, 2): open heads and BLEU of the front of one base, from the fewest heads on."""
    points = sorted((number(row["heads_open"]), number(row["bleu"])) for row in rows if row["base"] == base and number(row["on_front"]) > 0)
    return np.array(points).reshape(-1, 2)


def marker_look(colour: str, marker: str, base: int) -> dict[str, Any]:
    look = {"color": colour, "marker": marker, "markersize": SIZES.get(marker, 6.5), "linestyle": "none"}
    return look | {"fillstyle": FILLS[base % len(FILLS)], "markerfacecoloralt": "white", "markeredgewidth": 1.0}


def beside_of(axes: Axes, system: str) -> Transform:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return axes.transData + ScaledTranslation(LOOKS[system][2] / 72, 0, figure.dpi_scale_trans)


def handles(rows: Sequence[Row], bases: Sequence[str]) -> list[Line2D]:
    """The systems that are drawn, the reference's line, and the bases where there are several."""
    found = []
    for system, (colour, marker, _) in LOOKS.items():
        if any(row["system"] == system for row in rows):
            look = marker_look(colour, marker, 0) | ({"linestyle": "-", "linewidth": 1.6} if system == "l0" else {})
            found.append(Line2D([], [], label=system, **look))
    references = sorted({str(row.get("reference") or "") for row in rows if row["system"] == row.get("reference")})
    if len(bases) == 1 and references:
        found.append(Line2D([], [], color="#999999", linestyle=(0, (1, 2)), label=f"the reference, {' and '.join(references)}"))
    if len(bases) > 1:
        found += [Line2D([], [], label=base, **marker_look("#777777", "o", i)) for i, base in enumerate(bases)]
    return found


# ---------------------------------------------------------------- labels


def label(figure: Figure, panels: Sequence[Axes], rows: Sequence[Row]) -> None:
    """Lambda beside the points of l0, in the first panel that shows them, where it covers neither a marker nor another label."""
    figure.draw_without_rendering()  # the layout is made: boxes can be measured
    waiting = [row for row in rows if row["system"] == "l0"]
    kinds = {row.get("kinds") for row in waiting}
    for axes in panels:
        marks, lines = obstacles(axes, rows)
        bottom, top = axes.get_ylim()
        here = [row for row in waiting if bottom <= number(row["bleu"]) <= top]
        waiting = [row for row in waiting if row not in here]
        for row in here:
            found = write(axes, row, label_text(row, kinds), marks, lines)
            marks += [found] if found is not None else []


def label_text(row: Row, kinds: set[Any]) -> str:
    text = f"λ {number(row['lambda']):.2g}"
    return text if len(kinds) == 1 or row.get("kinds") == "+".join(KINDS) else f"{text}, {row['kinds']}"


def obstacles(axes: Axes, rows: Sequence[Row]) -> tuple[list[Bbox], list[Bbox]]:
    """Boxes, in pixels, of all markers, and of the lines: intervals and fronts."""
    marks, lines = [], []
    for row in rows:
        at = beside_of(axes, row["system"])
        x, y = at.transform((number(row["heads_open"]), number(row["bleu"])))
        ends = at.transform([(number(row["heads_open"]), number(row[name])) for name in ("bleu_low", "bleu_high")])
        marks.append(Bbox.from_bounds(x - 5, y - 5, 10, 10))
        lines.append(Bbox.from_extents(x - 1, ends[0, 1], x + 1, ends[1, 1]))
        if row["system"] == row.get("reference"):
            lines.append(Bbox.from_bounds(axes.bbox.x0, y - 1, axes.bbox.width, 2))
    for base in {row["base"] for row in rows}:
        line = axes.transData.transform(front_line(rows, base))
        for begin, end in pairwise(line):
            steps = max(2, int(np.abs(end - begin).max() / 3))
            lines += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in np.linspace(begin, end, steps)]
    return marks, lines


def write(axes: Axes, row: Row, text: str, marks: Sequence[Bbox], lines: Sequence[Bbox]) -> Bbox | None:
    """Write the text where it covers nothing, else where it covers a line alone; its box, None if it fits nowhere."""
    at = (number(row["heads_open"]), number(row["bleu"]))
    inside = axes.get_window_extent()
    for taken in ([*marks, *lines], marks):
        for right, up, side in PLACES:
            look: Any = {"ha": side, "fontsize": 8.5, "path_effects": WHITE_EDGE, "zorder": 8, "in_layout": False}
            note: Annotation = axes.annotate(text, at, (right, up), textcoords="offset points", **look)
            box = note.get_window_extent()
            if inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1) and not box.count_overlaps(list(taken)):
                return box
            note.remove()
    return None
