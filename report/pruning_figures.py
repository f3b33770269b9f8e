"""Figures of pruning, each as PNG and SVG, drawn from the rows of the CSV files of curves and ablations.

Legends stand outside the axes, so that they never cover a point. Numbers may be text, as a CSV reader gives
them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import AsinhNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from headgates.analysis.metrics import BLEU, Metric
from headgates.report.drawing import KIND_WORDS, WHITE_EDGE, Row, column, drawing, from_zero, no_rows, number
from headgates.report.palette import (
    BLACK,
    GREY,
    KIND_COLOURS,
    KIND_LOOKS,
    RULE,
    SOFT,
)

SIGNIFICANT = 0.01  # the paper's level


# ---------------------------------------------------------------- one head removed at a time


def draw_matrix(rows: Sequence[Row], path: str | Path, *, metric: Metric = BLEU, title: str = "") -> None:
    """Draw how removing each head alone changes the metric: a panel for each kind, one below the other, with
    layers down and heads across.

    A cell has a frame if p < 0.01: solid if that holds after Holm's adjustment for all heads tested, else
    dashed. Raises ValueError without a row."""
    if not rows:
        raise no_rows("row of an ablation")
    kinds = [kind for kind in KIND_COLOURS if any(row["kind"] == kind for row in rows)]
    layers = {kind: 1 + max(int(row["layer"]) for row in rows if row["kind"] == kind) for kind in kinds}
    heads = 1 + max(int(row["head"]) for row in rows)
    difference = f"{metric.name}_difference"
    widest = float(np.nanmax(np.abs(column(rows, difference)), initial=0.1))
    # steeper near 0: one head that costs everything must not leave the others white
    norm = AsinhNorm(linear_width=max(0.25, widest / 20), vmin=-widest, vmax=widest)
    down = [layers[kind] for kind in kinds]
    size = (max(5.2, 0.6 * heads + 2.0), max(3.6, 0.52 * sum(down) + 0.75 * len(kinds) + 0.9))
    with drawing(path, size=size, title=title) as figure:
        panels = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=down)[:, 0]
        for axes, kind in zip(panels, kinds, strict=True):
            values = np.full((layers[kind], heads), np.nan)
            mine = [row for row in rows if row["kind"] == kind]
            for row in mine:
                values[int(row["layer"]), int(row["head"])] = number(row[difference])
            picture = axes.imshow(values, norm=norm, cmap="PuOr", aspect="equal")
            for row in mine:
                red, green, blue, _ = picture.to_rgba(number(row[difference]))
                draw_cell(
                    axes, row, number(row[difference]), dark=0.3 * red + 0.59 * green + 0.11 * blue < 0.5
                )
            axes.set(
                xticks=range(heads), yticks=range(layers[kind]), ylabel="layer", xlim=(-0.6, heads - 0.4)
            )
            axes.set_ylim(layers[kind] - 0.4, -0.6)
            axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        panels[-1].set_xlabel("head")
        bar = figure.colorbar(
            picture, ax=panels, shrink=0.8, aspect=28, label=f"{metric.title} difference without the head"
        )
        ticks = bar_ticks(norm)
        bar.set_ticks(ticks, labels=[f"{tick:+g}".replace("-", "−") if tick else "0" for tick in ticks])
        bar.ax.minorticks_off()
        frames = [
            Patch(
                facecolor="none",
                edgecolor=BLACK.light,
                linewidth=2.0,
                label=f"p < {SIGNIFICANT}, Holm-adjusted",
            ),
            Patch(
                facecolor="none",
                edgecolor=BLACK.light,
                linewidth=1.2,
                linestyle=(0, (2, 1.5)),
                label=f"p < {SIGNIFICANT}, raw alone",
            ),
        ]
        figure.legend(handles=frames, loc="outside lower center", ncols=2)


def draw_cell(axes: Axes, row: Row, difference: float, *, dark: bool) -> None:
    x, y = int(row["head"]), int(row["layer"])
    raw, holm = number(row.get("p_value")) < SIGNIFICANT, number(row.get("p_value_holm")) < SIGNIFICANT
    text = (
        "0"
        if abs(difference) < 0.005
        else f"{difference:+.2f}"
        if abs(difference) < 9.95
        else f"{difference:+.1f}"
    )
    colour = "white" if dark else "black"
    axes.text(
        x,
        y,
        text.replace("-", "−"),
        ha="center",
        va="center",
        fontsize=8,
        color=colour,
        fontweight="bold" if holm else "normal",
    )
    if raw or holm:
        look: dict[str, Any] = {"linewidth": 2.0} if holm else {"linewidth": 1.2, "linestyle": (0, (2, 1.5))}
        look["path_effects"] = [
            withStroke(linewidth=look["linewidth"] + 2, foreground="white")
        ]  # to be seen on a dark cell
        axes.add_patch(
            Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, fill=False, edgecolor="black", zorder=3, **look)
        )


def bar_ticks(norm: AsinhNorm) -> list[float]:
    """Return 0 and round numbers on both sides of it, so far apart that their labels do not touch."""
    inside: list[float] = []
    for tick in (step * 10.0**power for power in range(-2, 3) for step in (1, 3)):
        if norm(tick) <= 1 and norm(tick) - norm(inside[-1] if inside else 0.0) > 0.08:
            inside.append(tick)
    return [*(-each for each in reversed(inside)), 0.0, *inside]


# ---------------------------------------------------------------- the same heads on two test sets


def draw_transfer(
    pairs: Sequence[Row],
    path: str | Path,
    *,
    names: tuple[str, str],
    pearson: tuple[float, float] | None,
    spearman: tuple[float, float] | None,
    metric: Metric = BLEU,
    title: str = "",
) -> None:
    """Draw each head's difference on one test set against that on another, coloured by kind, with the
    regression line.

    pairs: rows with kind, layer, head, and such differences as bleu_difference (on the first of `names`) and
    other_bleu_difference (on the second). pearson, spearman: coefficient and p-value, or None if there is
    none. Raises ValueError without a
    pair."""
    if not pairs:
        raise no_rows("pair of differences")
    x, y = column(pairs, f"{metric.name}_difference"), column(pairs, f"other_{metric.name}_difference")
    correlations = {"Pearson r": pearson, "Spearman ρ": spearman}
    near = middle(x) & middle(y)
    crowded = (
        near.sum() > 2
        and max(np.ptp(x) / (np.ptp(x[near]) or 1e-9), np.ptp(y) / (np.ptp(y[near]) or 1e-9)) > 4
    )
    with drawing(path, size=(11.6 if crowded else 6.4, 6.2), title=title) as figure:
        panels = figure.subplots(1, 2 if crowded else 1, squeeze=False)[0]
        for axes, shown in zip(panels, (np.full(len(x), True), near), strict=False):
            draw_differences(axes, pairs, x, y, shown)
            axes.set(
                xlabel=f"{metric.title} difference without the head, {names[0]}",
                ylabel=f"the same, {names[1]}",
            )
        panels[0].set_title(
            ", ".join(correlation_text(name, coefficient) for name, coefficient in correlations.items()),
            fontsize=10,
        )
        if crowded:
            panels[1].set_title(f"enlarged: {near.sum()} of the {len(x)} heads, the same line", fontsize=10)
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4 if crowded else 2
        )


def middle(values: np.ndarray) -> np.ndarray:
    """Return which values are no outliers: at most 1.5 times the range of the middle 80% away from the
    median."""
    low, centre, high = np.percentile(values, [10, 50, 90])
    return np.abs(values - centre) <= 1.5 * (high - low) + 1e-12


def draw_differences(
    axes: Axes, pairs: Sequence[Row], x: np.ndarray, y: np.ndarray, shown: np.ndarray
) -> None:
    """Draw the points of `shown` and the regression line of all points."""
    for kind, kind_look in KIND_LOOKS.items():
        mine = np.array([row["kind"] == kind for row in pairs]) & shown
        if mine.any():
            look: dict[str, Any] = {"color": kind_look.colour.light, "marker": kind_look.marker, "s": 42}
            axes.scatter(
                x[mine], y[mine], label=KIND_WORDS[kind], zorder=4, linewidth=0.6, edgecolor="white", **look
            )
    if np.ptp(x) > 0:
        slope, start = np.polyfit(x, y, 1)
        ends = np.array([x[shown].min(), x[shown].max()])
        axes.plot(
            ends, start + slope * ends, color=SOFT.light, linewidth=1.5, label="linear regression", zorder=3
        )
    for line in (axes.axhline, axes.axvline):
        line(0, color=GREY.light, linewidth=0.9, zorder=1)
    axes.grid(True, color=RULE.light, linewidth=0.8)
    axes.set_axisbelow(True)
    name_farthest(axes, [row for row, here in zip(pairs, shown, strict=True) if here], x[shown], y[shown])


def name_farthest(axes: Axes, pairs: Sequence[Row], x: np.ndarray, y: np.ndarray, count: int = 3) -> None:
    """Write kind and layer.head beside the `count` heads that matter most, on the side towards the middle,
    where there is room."""
    centre = (x.min() + x.max()) / 2
    for i in np.argsort(-(np.abs(x) / (np.ptp(x) or 1) + np.abs(y) / (np.ptp(y) or 1)), kind="stable")[
        :count
    ]:
        left = x[i] <= centre
        look: dict[str, Any] = {
            "ha": "left" if left else "right",
            "va": "center",
            "fontsize": 8.5,
            "path_effects": WHITE_EDGE,
            "zorder": 5,
        }
        words = f"{pairs[i]['kind']} {pairs[i]['layer']}.{pairs[i]['head']}"
        axes.annotate(words, (x[i], y[i]), (7 if left else -7, 0), textcoords="offset points", **look)


def correlation_text(name: str, coefficient: tuple[float, float] | None) -> str:
    if coefficient is None or not math.isfinite(coefficient[0]):
        return f"{name}: none"
    value, p = coefficient
    p_words = (
        f"= {p:.3f}" if p >= 0.001 else f"< $10^{{{math.ceil(math.log10(p))}}}$" if p > 1e-300 else "≈ 0"
    )
    return f"{name} = {value:.2f}".replace("-", "−") + f" (p {p_words})"


# ---------------------------------------------------------------- importance while the base trains


def draw_dynamics(rows: Sequence[Row], path: str | Path, *, metric: Metric = BLEU, title: str = "") -> None:
    """Draw the metric as % of the unpruned model's at the same epoch, a line for each share of closed heads.
    Below each epoch stands the metric of the unpruned model.

    rows: epoch, closed_share, and such metrics as valid_bleu and valid_bleu_relative (1 for the unpruned
    model). Raises ValueError without a row."""
    if not rows:
        raise no_rows("epoch's curve")
    epochs = sorted({int(row["epoch"]) for row in rows})
    shares = sorted({number(row["closed_share"]) for row in rows})
    colours = matplotlib.colormaps["viridis"](
        np.linspace(0.0, 0.88, len(shares))
    )  # its light end is lost on white
    at = {(int(row["epoch"]), number(row["closed_share"])): row for row in rows}
    with drawing(path, size=(8, 5.2), title=title) as figure:
        axes = figure.subplots()
        lines: list[Line2D] = []
        for share, colour, marker in zip(shares, colours, "osD^vPX<>*" * 10, strict=False):
            relative = [
                100 * number(at.get((epoch, share), {}).get(f"valid_{metric.name}_relative"))
                for epoch in epochs
            ]
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5, "linewidth": 1.7}
            lines += axes.plot(epochs, relative, label=f"{100 * share:.0f}%", **look)
        whole = [number(at.get((epoch, 0.0), {}).get(f"valid_{metric.name}")) for epoch in epochs]
        axes.set_xticks(*epoch_ticks(epochs, whole))
        xlabel = f"epoch of the base's training; below it the unpruned model's {metric.title}"
        axes.set(xlabel=xlabel, ylabel=f"{metric.title} of the unpruned model kept (%)")
        from_zero(axes)
        axes.grid(True, axis="y", color=RULE.light, linewidth=0.8)
        figure.legend(handles=lines, title="heads closed", loc="outside right center")


def epoch_ticks(epochs: Sequence[int], whole: Sequence[float]) -> tuple[list[int], list[str]]:
    """Return the epochs that have a tick, and their labels; an epoch too near to the one before has none."""
    shown: list[int] = []
    for epoch in epochs:
        if not shown or epoch - shown[-1] >= (epochs[-1] - epochs[0]) / 14:
            shown.append(epoch)
    values = dict(zip(epochs, whole, strict=True))
    return shown, [
        f"{epoch}\n{values[epoch]:.1f}" if math.isfinite(values[epoch]) else str(epoch) for epoch in shown
    ]
