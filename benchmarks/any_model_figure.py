"""results/any-model.png: loss against measured speed of six models, from results/any_model.jsonl.

python -m benchmarks.any_model_figure
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.records import RESULTS, record_lines
from headgates.report.drawing import drawing
from headgates.report.palette import BLUE, GREEN, ORANGE, PINK, SKY, VERMILION

MARKED = {  # what made it smaller -> colour and marker
    "headgates": (BLUE, "o"),
    "even cut": (VERMILION, "s"),
    "Taylor, local": (GREEN, "^"),
    "Taylor, global": (ORANGE, "v"),
    "magnitude, local": (PINK, "<"),
    "magnitude, global": (SKY, ">"),
}


def draw_model(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """One panel: curves without training and, hollow, models after the same short training."""
    (unpruned,) = (row for row in rows if row["what"] == "unpruned")
    tops = [unpruned["loss"]]
    for what, (colour, marker) in MARKED.items():
        points = [row for row in rows if row["what"] == what and row["curve"]]
        curve = sorted([(1.0, unpruned["loss"]), *((row["speed"], row["loss"]) for row in points)])
        axes.plot(*zip(*curve, strict=True), color=colour.light, marker=marker, markersize=5, label=what)
        tops += [loss for speed, loss in curve if what == "even cut"]
    for row in rows:
        if "trained_loss" in row and row["what"] in MARKED:
            colour, marker = MARKED[row["what"]]
            look = {"markerfacecolor": "white", "markersize": 9, "markeredgewidth": 1.5, "zorder": 5}
            axes.plot(row["speed"], row["trained_loss"], marker, color=colour.light, **look)
    (new,) = (row["trained_loss"] for row in rows if row["what"] == "new")
    axes.axhline(new, color="0.5", linewidth=1, linestyle=":", label="even shape, new weights")
    low, top = min(unpruned["loss"], new), max(*tops, new)
    axes.set_ylim(low - 0.08 * (top - low), top + 0.05 * (top - low))
    axes.set_xlim(0.9, 2.8)
    axes.set(title=unpruned["base"], xlabel="times as fast", ylabel="test loss")


def main() -> None:
    rows = [row for record in record_lines("any_model") for row in record["rows"]]
    bases = list(dict.fromkeys(row["base"] for row in rows))
    with drawing(RESULTS / "any-model", size=(11, 7), title="") as figure:
        panels = figure.subplots(2, 3, squeeze=False).flat
        for axes, base in zip(panels, bases, strict=False):
            draw_model(axes, [row for row in rows if row["base"] == base])
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)


if __name__ == "__main__":
    main()
