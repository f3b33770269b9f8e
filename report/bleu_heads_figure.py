"""Draw BLEU with its 95% interval against open heads for all systems of all runs, with the Pareto front of
the learned gates; if wanted, a panel beside it shows which heads one run leaves open.

report/palette.py holds the colour and the marker of each system. Several bases, such as seeds, differ in how
their markers are filled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, ScaledTranslation, Transform

from headgates.configs.schema import KINDS
from headgates.report.drawing import KIND_WORDS, WHITE_EDGE, Row, column, drawing, no_rows, number
from headgates.report.palette import GREY, KIND_LOOKS, LOOKS, RULE, SOFT, look_of

FILLS = ("full", "none", "left", "right", "top", "bottom")  # of the markers of each base, in turn
SIZES = {"*": 10.0, "P": 7.5, "X": 7.5, "h": 8.0}
REFERENCE: Any = {"color": GREY.light, "linestyle": (0, (1, 2)), "linewidth": 1.2}
ENLARGED = (
    3  # where BLEU falls this many times as far as in the part of interest, that part has a panel of its own
)
APART = (
    7.0  # points between systems with the same number of heads, so that their intervals stand side by side
)
LABEL_OFFSETS = (
    (-6, 5, "right"),
    (6, -12, "left"),
    (6, 5, "left"),
    (-6, -12, "right"),
)  # in points from the marker, tried in turn


@dataclass(frozen=True)
class HeadsPanel:
    """What the panel of heads shows. sites: (kind, layer) -> whether each head is open."""

    title: str
    sites: dict[tuple[str, int], list[bool]]


def draw_bleu_heads(
    rows: Sequence[Row], path: str | Path, *, title: str = "", panel: HeadsPanel | None = None
) -> None:
    """Draw rows of `runfolder.run_rows`, maybe as a CSV reader gives them. `path` has no suffix: .png and
    .svg are added.

    Systems that equal another but for rounding (-soft, -removed) and rows that repeat those of a base are
    left out. Where some systems are far below the front, the upper panel is enlarged and the lower one shows
    all. Raises ValueError without a
    row to draw."""
    shown = [row for row in rows if is_drawn(row)]
    if not shown:
        raise no_rows("system of a finished run")
    bases = list(dict.fromkeys(str(row["base"]) for row in shown))
    whole, near = ranges(shown)
    with drawing(path, size=(8.4 + 5.2 * (panel is not None), 7.4 if near else 5.6), title=title) as figure:
        grid = figure.add_gridspec(
            2 if near else 1,
            2 if panel else 1,
            width_ratios=(1.45, 1) if panel else None,
            height_ratios=(2.6, 1) if near else None,
        )
        axes_list = [figure.add_subplot(grid[0, 0])]
        axes_list += [figure.add_subplot(grid[1, 0], sharex=axes_list[0])] if near else []
        for axes, limits in zip(axes_list, (near or whole, whole), strict=False):
            draw_systems(axes, shown, bases)
            axes.set(
                ylim=limits, xlim=across(shown), ylabel="BLEU, test set" if axes is axes_list[0] else "BLEU"
            )
        note = "bars: 95% intervals, side by side where heads are equal; line: the front, learned gates or base that no other beats"
        axes_list[0].set_title(("enlarged; " if near else "") + note, fontsize=8.5, color=SOFT.light)
        if near:
            axes_list[0].tick_params(labelbottom=False)
            axes_list[1].set_title("all systems", fontsize=8.5, color=SOFT.light)
        totals = sorted({int(number(row["heads_total"])) for row in shown})
        axes_list[-1].set_xlabel(
            f"open heads{f', of {totals[0]}' if len(totals) == 1 else ''} (fewer to the right)"
        )
        if panel:
            draw_heads(figure.add_subplot(grid[:, 1]), panel)
        figure.legend(
            handles=legend_handles(shown, bases),
            loc="outside lower center",
            ncols=6 if panel else 3,
            handlelength=2.2,
        )
        figure.suptitle(
            title, x=0.01, ha="left", fontsize=13
        )  # for the room that it takes; `drawing` writes it
        label_lambdas(figure, axes_list, shown)


def is_drawn(row: Row) -> bool:
    return not str(row["system"]).endswith(("-soft", "-removed")) and not str(
        row.get("same_as") or ""
    ).startswith("base")


def is_learned(row: Row) -> bool:
    """Whether the system has learned gates. In tables older than the column `learned`, only l0 has."""
    return number(row["learned"]) > 0 if "learned" in row else row["system"] == "l0"


def is_trained(row: Row) -> bool:
    """Whether the weights were trained with the heads closed. Pruning without training may lose so much that
    on its scale the others would look like one line."""
    return (
        is_learned(row) or str(row["system"]).startswith("base") or str(row["system"]).endswith("-finetuned")
    )


def ranges(rows: Sequence[Row]) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return the limits of BLEU for all rows, and those of an enlarged upper panel, or None if one panel
    shows all well."""
    bottom, top = lowest(rows), max(number(row["bleu_high"]) for row in rows)
    room = 0.04 * (top - bottom or 25)
    whole = (bottom - room, top + room)
    trained = [row for row in rows if is_trained(row)] or list(rows)
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
    """Return the limits of open heads, the most on the left: what is closed grows to the right here, in
    curves and on the report page."""
    heads = column(rows, "heads_open")
    room = 0.07 * max(float(np.ptp(heads)), 4.0)
    return float(heads.max()) + room, float(heads.min()) - room


# ---------------------------------------------------------------- systems


def draw_systems(axes: Axes, rows: Sequence[Row], bases: Sequence[str]) -> None:
    one = len(bases) == 1
    for row in rows:
        if one and row["system"] == row.get("reference"):
            axes.axhline(number(row["bleu"]), zorder=1, **REFERENCE)
    for base in bases:
        line = front_line(rows, base)
        colour = look_of(next((row["system"] for row in rows if is_learned(row)), "l0")).colour.light
        axes.plot(
            line[:, 0],
            line[:, 1],
            color=colour,
            linewidth=1.8 if one else 1.1,
            alpha=0.9 if one else 0.65,
            zorder=3,
        )
    shifts = shift_of_systems(axes, rows)
    for row in rows:
        x, y, low, high = (number(row[name]) for name in ("heads_open", "bleu", "bleu_low", "bleu_high"))
        marks: Any = marker_look(row["system"], bases.index(str(row["base"])))
        zorder, shift = 6 if is_learned(row) else 5, shifts[row["system"]]
        axes.plot(
            [x, x],
            [low, high],
            color=marks["color"],
            linewidth=1.1,
            alpha=0.55,
            zorder=zorder - 1,
            transform=shift,
        )
        axes.plot([x], [y], zorder=zorder, transform=shift, **marks)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axes.grid(True, color=RULE.light, linewidth=0.8)
    axes.set_axisbelow(True)


def systems_in_order(rows: Sequence[Row]) -> list[str]:
    """Return the systems of the rows: those of the palette in its order, then the others in the order of the
    rows."""
    systems = dict.fromkeys(str(row["system"]) for row in rows)
    return [*(name for name in LOOKS if name in systems), *(name for name in systems if name not in LOOKS)]


def shift_of_systems(axes: Axes, rows: Sequence[Row]) -> dict[str, Transform]:
    """Return where each system is drawn: learned gates and the base at their number of heads, others a few
    points beside it."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    centred = {str(row["system"]) for row in rows if is_learned(row)} | {"base"}
    steps = {name: 0 for name in centred}
    for i, name in enumerate(name for name in systems_in_order(rows) if name not in centred):
        steps[name] = (i // 2 + 1) * (-1 if i % 2 else 1)
    return {
        name: axes.transData + ScaledTranslation(APART * step / 72, 0, figure.dpi_scale_trans)
        for name, step in steps.items()
    }


def front_line(rows: Sequence[Row], base: str) -> np.ndarray:
    """Return open heads and BLEU of the points on the front of one base, (points, 2), starting with the
    fewest heads."""
    points = sorted(
        (number(row["heads_open"]), number(row["bleu"]))
        for row in rows
        if row["base"] == base and number(row["on_front"]) > 0
    )
    return np.array(points).reshape(-1, 2)


def marker_look(system: str, base: int) -> dict[str, Any]:
    look = look_of(system)
    marks = {
        "color": look.colour.light,
        "marker": look.marker,
        "markersize": SIZES.get(look.marker, 6.5),
        "linestyle": "none",
    }
    return marks | {
        "fillstyle": FILLS[base % len(FILLS)],
        "markerfacecoloralt": "white",
        "markeredgewidth": 1.0,
    }


def legend_handles(rows: Sequence[Row], bases: Sequence[str]) -> list[Line2D]:
    """Return the entries of the legend: the systems that are drawn, the line of the reference, and the bases
    if there are several."""
    learned = {row["system"] for row in rows if is_learned(row)}
    handles = []
    for system in systems_in_order(rows):
        line = {"linestyle": "-", "linewidth": 1.6} if system in learned else {}
        handles.append(Line2D([], [], label=system, **(marker_look(system, 0) | line)))
    references = sorted(
        {str(row.get("reference") or "") for row in rows if row["system"] == row.get("reference")}
    )
    if len(bases) == 1 and references:
        handles.append(Line2D([], [], label=f"the reference, {' and '.join(references)}", **REFERENCE))
    if len(bases) > 1:
        marks = [marker_look("base", i) | {"marker": "o", "markersize": 6.5} for i in range(len(bases))]
        handles += [Line2D([], [], label=base, **look) for base, look in zip(bases, marks, strict=True)]
    return handles


def label_lambdas(figure: Figure, axes_list: Sequence[Axes], rows: Sequence[Row]) -> None:
    """Write lambda beside the learned points, in the first panel that shows them, where it covers neither a
    marker nor another label."""
    figure.draw_without_rendering()  # the layout is made: boxes can be measured
    waiting = [
        row for row in rows if is_learned(row) and row["lambda"] is not None
    ]  # gates may be told a number of heads instead
    kinds = {row.get("kinds") for row in waiting}
    for axes in axes_list:
        shifts, (bottom, top) = shift_of_systems(axes, rows), axes.get_ylim()
        centres = [
            shifts[row["system"]].transform((number(row["heads_open"]), number(row["bleu"]))) for row in rows
        ]
        taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in centres]
        here = [row for row in waiting if bottom <= number(row["bleu"]) <= top]
        waiting = [row for row in waiting if row not in here]
        for row in here:
            text = f"λ {number(row['lambda']):.2g}"
            if len(kinds) > 1 and row.get("kinds") != "+".join(KINDS):
                text += f", {row['kinds']}"
            box = write_beside(axes, (number(row["heads_open"]), number(row["bleu"])), text, taken)
            taken += [box] if box is not None else []


def write_beside(axes: Axes, point: tuple[float, float], text: str, taken: Sequence[Bbox]) -> Bbox | None:
    """Write the text beside a point, inside the axes and off every box of `taken`. Return its box, or None if
    it fits nowhere."""
    inside = axes.get_window_extent()
    for right, up, side in LABEL_OFFSETS:
        look: Any = {"ha": side, "fontsize": 8.5, "path_effects": WHITE_EDGE, "zorder": 8, "in_layout": False}
        note = axes.annotate(text, point, (right, up), textcoords="offset points", **look)
        box = note.get_window_extent()
        if (
            inside.contains(box.x0, box.y0)
            and inside.contains(box.x1, box.y1)
            and not box.count_overlaps(list(taken))
        ):
            return box
        note.remove()
    return None


# ---------------------------------------------------------------- heads


def draw_heads(axes: Axes, panel: HeadsPanel) -> None:
    """Draw a row for each layer, grouped by kind, with a mark for each head: full if it is open, hollow if it
    is shut."""
    widest = max(map(len, panel.sites.values()))
    y, ticks = 0.0, []
    for kind, look in KIND_LOOKS.items():
        layers = {
            layer: heads for (site_kind, layer), heads in sorted(panel.sites.items()) if site_kind == kind
        }
        if not layers:
            continue
        words = f"{KIND_WORDS[kind].removesuffix('-attention').removesuffix(' attention')}\n"
        words += f"{sum(map(sum, layers.values()))} of {sum(map(len, layers.values()))}"
        axes.text(
            widest - 0.1, y + len(layers) / 2 - 0.5, words, color=look.colour.light, va="center", fontsize=11
        )
        for layer, heads in layers.items():
            for head, is_open in enumerate(heads):
                marks: Any = {
                    "facecolor": look.colour.light if is_open else "none",
                    "alpha": 1 if is_open else 0.55,
                }
                axes.scatter(head, y, s=95, marker="o", edgecolor=look.colour.light, linewidth=1.4, **marks)
            ticks.append((y, f"layer {layer}"))
            y += 1
        y += 0.55
    axes.set(xlim=(-0.7, widest + 2.6), ylim=(y - 0.6, -0.8), xticks=range(widest), xlabel="head")
    axes.xaxis.set_label_coords((widest / 2 + 0.2) / (widest + 3.3), -0.09)
    axes.set_yticks([tick for tick, _ in ticks], [words for _, words in ticks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(panel.title)
