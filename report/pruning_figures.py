"""Figures of pruning, each as PNG and SVG, from rows: points of report/scatter.py."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from headgates.analysis.metrics import BLEU, Metric
from headgates.report.drawing import KIND_WORDS, FigureRow, column, no_rows
from headgates.report.palette import KIND_LOOKS, SOFT, Colour, Look
from headgates.report.scatter import Panel, Series, draw_scatter

NAMED_HEADS = 3  # heads of a scatter that are named: those that matter most
CROWDED = 4  # a few heads stretch an axis so many times: the others get a panel of their own

# ---------------------------------------------------------------- the same heads on two test sets


def draw_transfer(
    pairs: Sequence[FigureRow],
    path: str | Path,
    *,
    names: tuple[str, str],
    pearson: tuple[float, float] | None,
    spearman: tuple[float, float] | None,
    metric: Metric = BLEU,
    title: str = "",
) -> None:
    """Draw each head's difference on one test set against that on another, by kind, with the regression line.

    pairs: rows with kind, layer, head, and such differences as bleu_difference (on the first of `names`) and
    other_bleu_difference (on the second). pearson, spearman: coefficient and p-value, or None if there is
    none. Raises ValueError without a pair."""
    if not pairs:
        raise no_rows("pair of differences")
    x, y = column(pairs, f"{metric.name}_difference"), column(pairs, f"other_{metric.name}_difference")
    near = middle(x) & middle(y)
    crowded = near.sum() > 2 and max(stretched(x, near), stretched(y, near)) > CROWDED

    def panel(words: str, shown: np.ndarray) -> Panel:
        far = (np.abs(x) / (np.ptp(x) or 1) + np.abs(y) / (np.ptp(y) or 1)) * shown
        named = set(np.argsort(-far, kind="stable")[:NAMED_HEADS])
        series = []
        for kind, look in KIND_LOOKS.items():
            mine = [i for i, row in enumerate(pairs) if row["kind"] == kind and shown[i]]
            notes = [f"{kind} {pairs[i]['layer']}.{pairs[i]['head']}" * (i in named) for i in mine]
            series.append(Series(KIND_WORDS[kind] * bool(mine), look, x[mine], y[mine], notes=notes))
        if np.ptp(x) > 0:
            slope, start = np.polyfit(x, y, 1)
            ends = np.array([x[shown].min(), x[shown].max()])
            line = start + slope * ends
            series.append(Series("linear regression", Look(SOFT, ""), ends, line, joined=True, marked=False))
        return Panel(words, series)

    found = {"Pearson r": pearson, "Spearman ρ": spearman}
    grid = [panel(", ".join(map(correlation_text, found, found.values())), np.full(len(x), True))]
    if crowded:
        grid.append(panel(f"enlarged: {near.sum()} of the {len(x)} heads, the same line", near))
    xlabel = f"{metric.title} difference without the head, {names[0]}"
    ylabel = f"the same, {names[1]}"
    draw_scatter([grid], path, title=title, xlabel=xlabel, ylabel=ylabel, fewer=False, share=False)


def middle(values: np.ndarray) -> np.ndarray:
    """Return which values are no outliers: at most 1.5 times the range of the middle 80% away from the
    median."""
    low, centre, high = np.percentile(values, [10, 50, 90])
    return np.abs(values - centre) <= 1.5 * (high - low) + 1e-12


def stretched(values: np.ndarray, near: np.ndarray) -> float:
    """How many times as wide the range of all values is as that of those nearby."""
    return float(np.ptp(values) / (np.ptp(values[near]) or 1e-9))


def correlation_text(name: str, coefficient: tuple[float, float] | None) -> str:
    if coefficient is None or not math.isfinite(coefficient[0]):
        return f"{name}: none"
    value, p = coefficient
    p_words = f"= {p:.3f}" if p >= 0.001 else f"< {10.0 ** math.ceil(math.log10(max(p, 1e-300))):.0e}"
    return f"{name} = {value:.2f} (p {p_words})".replace("-", "−")


# ---------------------------------------------------------------- importance while the base trains


def draw_dynamics(
    rows: Sequence[FigureRow], path: str | Path, *, metric: Metric = BLEU, title: str = ""
) -> None:
    """Draw the metric as % of the unpruned model's at the same epoch, a line for each share of closed heads;
    beside the line of the unpruned model stands its own metric.

    rows: epoch, closed_share, and such metrics as valid_bleu and valid_bleu_relative (1 for the unpruned
    model). Raises ValueError without a row."""
    shares = sorted({row["closed_share"] for row in rows})
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.88, len(shares)))  # its light end is lost
    series = []
    for share, colour, marker in zip(shares, map(to_hex, colours), "osD^vPX<>*" * 10, strict=False):
        mine = sorted((row for row in rows if row["closed_share"] == share), key=lambda row: row["epoch"])
        relative = 100 * column(mine, f"valid_{metric.name}_relative")
        look = Look(Colour(colour, colour), marker)
        notes = [f"{row[f'valid_{metric.name}']:.1f}" for row in mine] if not share else ()
        label = f"{share:.0%} closed" if share else f"unpruned, with its {metric.title}"
        series.append(Series(label, look, column(mine, "epoch"), relative, joined=True, notes=notes))
    panel = Panel("", series, limits=(-2, 108))
    ylabel = f"{metric.title} of the unpruned model kept (%)"
    draw_scatter(
        [[panel]], path, title=title, xlabel="epoch of the base's training", ylabel=ylabel, fewer=False
    )
