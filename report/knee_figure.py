"""Draw what is lost at each number of heads, with the one-sided bound, what is accepted, and the knee."""

from collections.abc import Sequence
from pathlib import Path

from headgates.analysis.knee import SLACK
from headgates.report.drawing import WHITE_EDGE, Row, column, drawing, no_rows
from headgates.report.palette import GREY, look_of
from headgates.tasks.metrics import Metric


def draw_knee(rows: Sequence[Row], path: str | Path, *, metric: Metric, limit: float, title: str) -> None:
    """rows: those of curve.csv, heads_open, heads_total, drop, drop_bound, acceptable. limit: the accepted
    mean drop, in points. `path` has no suffix: .png and .svg are added. Raises ValueError without a row."""
    if not rows:
        raise no_rows("number of heads")
    ordered = sorted(rows, key=lambda row: int(row["heads_open"]))
    heads, drops, bounds = (column(ordered, name) for name in ("heads_open", "drop", "drop_bound"))
    colour = look_of("l0").colour.light
    with drawing(path, size=(7.6, 4.6), title=title) as figure:
        axes = figure.add_subplot()
        axes.vlines(
            heads,
            drops,
            bounds,
            color=colour,
            linewidth=1.4,
            alpha=0.55,
            label="up to the one-sided 95% bound",
        )
        axes.plot(heads, drops, color=colour, marker="o", label="mean")
        for value, words in (
            (limit, f"accepted mean, {limit:g}"),
            (limit + SLACK, f"accepted bound, {limit + SLACK:g}"),
        ):
            axes.axhline(value, color=GREY.light, linestyle=(0, (3, 2)), linewidth=1)
            axes.annotate(
                words,
                (1, value),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=9,
            )
        if accepted := [row for row in ordered if str(row["acceptable"]) == "True"]:
            best = accepted[0]
            axes.annotate(
                f"{best['heads_open']} of {best['heads_total']} heads",
                (float(best["heads_open"]), float(best["drop"])),
                xytext=(0, -16),
                textcoords="offset points",
                ha="center",
                weight="bold",
                path_effects=WHITE_EDGE,
            )
        axes.invert_xaxis()
        axes.invert_yaxis()
        axes.set_xlabel(f"open heads, of {ordered[0]['heads_total']} (fewer to the right)")
        axes.set_ylabel(f"{metric.title} lost (more is lower)")
        axes.legend(loc="lower left")
