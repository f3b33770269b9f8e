"""Figures of pruning, each as PNG and SVG, from the rows of curves and ablations: points of
report/scatter.py."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import to_hex

from headgates.analysis.knee import SLACK
from headgates.analysis.metrics import BLEU, Metric
from headgates.report.drawing import KIND_WORDS, Row, column, no_rows
from headgates.report.palette import KIND_LOOKS, SOFT, Colour, Look, curve_looks, look_of
from headgates.report.scatter import Panel, Series, draw_scatter

NAMED = 3  # heads of a scatter that are named: those that matter most
CROWDED = 4  # a few heads stretch an axis so many times: the others get a panel of their own

# ---------------------------------------------------------------- curves and the fewest heads


def draw_curves(
    curves: Mapping[str, Sequence[Row]],
    path: str | Path,
    *,
    metric: Metric = BLEU,
    points: Sequence[Row] = (),
    title: str = "",
    search: str = "",
) -> None:
    """Draw the test metric against the share of closed heads (%), with the band of its 95% interval.

    For a curve of several seeds the line is their mean, and the band reaches from the lowest to the highest
    seed. points: models beside the curves, each with label, heads_open, heads_total, the metric and, if
    known, the ends of its interval: bleu, bleu_low and bleu_high. Raises ValueError without a row."""
    measured = f"test_{metric.name}"
    looks = curve_looks([name for name, rows in curves.items() if rows])
    series = [pruning_series(name, curves[name], measured, look) for name, look in looks.items()]
    unpruned = {each.values[0] for each in series if each.heads[0] == 0}
    for point in points if series else ():
        x = 100 * (1 - point["heads_open"] / point["heads_total"])
        value, low, high = (column([point], metric.name + end) for end in ("", "_low", "_high"))
        notes = [str(point["label"])]
        series.append(Series("learned gates", look_of("l0"), [x], value, low, high, notes=notes))
    levels = {"unpruned": unpruned.pop()} if len(unpruned) == 1 else {}
    note = "bands: 95% intervals; of several seeds, from the lowest to the highest around their mean"
    top = np.nanmax([1.0, *(value for each in series for value in (*each.values, *each.high))])
    panel = Panel(note, series, levels, (-0.02 * top, 1.05 * top))
    ylabel = ", ".join(filter(None, (metric.title, "test set", search)))
    draw_scatter([[panel]], path, title=title, xlabel="heads closed (%)", ylabel=ylabel, fewer=False)


def pruning_series(name: str, rows: Sequence[Row], measured: str, look: Look) -> Series:
    shares = sorted({row["closed_share"] for row in rows})
    at = [[row for row in rows if row["closed_share"] == share] for share in shares]
    seeds = len({row.get("seed") for row in rows})
    ends = ("", "") if seeds > 1 else ("_low", "_high")
    low, high = (
        [edge(column(group, measured + end)) for group in at]
        for edge, end in zip((np.min, np.max), ends, strict=True)
    )
    means = [float(column(group, measured).mean()) for group in at]
    label = f"{name}, {seeds} seeds" if seeds > 1 else name
    x = [100 * share for share in shares]
    return Series(label, look, x, means, low, high, joined=True, band=True, marked=len(x) <= 30)


def draw_knee(rows: Sequence[Row], path: str | Path, *, metric: Metric, limit: float, title: str) -> None:
    """Draw what is lost at each number of heads up to the one-sided bound, what is accepted, and the fewest
    heads. rows: those of curve.csv; limit: the accepted mean loss, in points."""
    ordered = sorted(rows, key=lambda row: row["heads_open"])
    heads, lost, bounds = (column(ordered, name) for name in ("heads_open", "drop", "drop_bound"))
    fewest = next((row for row in ordered if str(row["acceptable"]) == "True"), None)
    total = ordered[0]["heads_total"] if ordered else ""
    notes = [f"{row['heads_open']} of {total} heads" * (row is fewest) for row in ordered]
    label, look = "mean, up to the one-sided 95% bound", look_of("l0")
    mean = Series(label, look, heads, -lost, -lost, -bounds, joined=True, notes=notes)
    levels = {f"accepted mean, {limit:g}": -limit, f"accepted bound, {limit + SLACK:g}": -limit - SLACK}
    xlabel = f"open heads, of {total} (fewer to the right)"
    ylabel = f"{metric.title} minus that of the reference"
    draw_scatter([[Panel("", [mean], levels)]], path, title=title, xlabel=xlabel, ylabel=ylabel)


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
        named = set(np.argsort(-far, kind="stable")[:NAMED])
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


def draw_dynamics(rows: Sequence[Row], path: str | Path, *, metric: Metric = BLEU, title: str = "") -> None:
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
