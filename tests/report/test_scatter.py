"""The one scatter of a metric against heads: what is drawn is what the rows say, notes and legends cover
nothing, and the same rows give the same files."""

import csv
import io
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure

from headgates.analysis.metrics import BLEU
from headgates.report import drawing
from headgates.report.bleu_heads import FILLS, draw_bleu_heads, enlarged, system_series
from headgates.report.compare_files import draw_compared, panels
from headgates.report.palette import look_of
from headgates.report.scatter import Panel, Series, draw_curves, draw_knee, draw_scatter
from tests.worlds.compared import compared, point, right

ALL = "enc-self+dec-self+cross"


def row(system: str, heads: int, bleu: float, *, base: str = "s1", lam: float | None = None, **more) -> dict:
    interval = {"bleu": bleu, "bleu_low": bleu - 0.5, "bleu_high": bleu + 0.75}
    known = {"base": base, "lambda": lam, "kinds": ALL if lam else None, "system": system}
    heads_of = {"heads_open": heads, "heads_total": 23, "reference": "base", "same_as": None}
    return {**known, **heads_of, **interval, "on_front": 0, "learned": int(system == "l0"), **more}


def sweep(base: str = "s1", worse: float = 0.0) -> list[dict]:
    rows = [row("base", 23, 33 - worse, base=base, on_front=1), row("base-continued", 23, 32.5, base=base)]
    for lam, heads, bleu, front in ((0.003, 19, 32.0, 1), (0.01, 13, 31.5, 1), (0.031, 14, 29.0, 0)):
        rows.append(row("l0", heads, bleu - worse, base=base, lam=lam, on_front=front))
        rows.append(row("l0-removed", heads, bleu - worse, base=base, lam=lam))
        rows.append(row("greedy-finetuned", heads, bleu - 0.5 - worse, base=base, lam=lam))
    return rows


def pruned(fall: float, seeds=("",)) -> list[dict]:
    rows = []
    for number, seed in enumerate(seeds):
        for closed in (0, 5, 14, 23):
            bleu = 37.0 * (1 - closed / 23) ** fall + number * (0 < closed < 23)
            ends = {f"test_bleu{end}": bleu + add for end, add in (("", 0), ("_low", -0.7), ("_high", 0.7))}
            rows.append({"seed": seed, "closed_share": closed / 23, **ends})
    return rows


COLLAPSED = [*sweep(), row("greedy", 5, 2.0, lam=0.1), row("greedy", 13, 25.0, lam=0.01)]
CURVES = {"gradient": pruned(0.3), "random": pruned(2.0, seeds=(1, 2, 3))}
STAR = {
    "label": "λ 0.01",
    "heads_open": 7,
    "heads_total": 23,
    "bleu": 35.5,
    "bleu_low": 34.5,
    "bleu_high": 36,
}
KNEE = [
    {
        "heads_open": heads,
        "heads_total": 48,
        "drop": 30 / heads,
        "drop_bound": 31 / heads,
        "acceptable": heads > 20,
    }
    for heads in (12, 24, 48)
]
COMPARED = [
    *(point("greedy", heads, right(range(n))) for heads, n in ((17, 90), (5, 30))),
    point("greedy", 5, right(range(70)), closing="repair"),
    *(point("greedy", 5, right(range(n)), epochs=1, seed=seed) for seed, n in ((1, 100), (2, 120))),
    *(point("subset", 5, right(range(n)), epochs=1, seed=n, learned=True) for n in (130, 120)),
]
DRAWN = {
    "systems": lambda path: draw_bleu_heads(COLLAPSED, path, title="toy"),
    "bases": lambda path: draw_bleu_heads([*sweep(), *sweep("s2", 1.0)], path, title="toy"),
    "curves": lambda path: draw_curves(CURVES, path, points=[STAR], title="orders"),
    "knee": lambda path: draw_knee(KNEE, path, metric=BLEU, limit=1.0, title="the fewest heads"),
    "compared": lambda path: draw_compared(compared(COMPARED), path, metric="accuracy", title="planted"),
}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 50)

    def savefig(self, path, **options):
        if self not in figures:
            figures.append(self)
        save(self, path, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def marked(axes, system: str) -> list[tuple[float, float]]:
    """The points of a system in an axes."""
    look = look_of(system)
    lines = [line for line in axes.get_lines() if line.get_color() == look.colour.light]
    lines = [line for line in lines if line.get_marker() == look.marker]
    return sorted(tuple(map(float, pair)) for line in lines for pair in zip(*line.get_data(), strict=True))


@pytest.mark.parametrize("name", DRAWN)
def test_notes_legend_and_title_cover_nothing_and_the_files_are_the_same_again(drawn, tmp_path, name):
    DRAWN[name](tmp_path / "first")
    DRAWN[name](tmp_path / "second")
    for end in ("png", "svg"):
        assert (tmp_path / f"first.{end}").read_bytes() == (tmp_path / f"second.{end}").read_bytes()
    figure = drawn[0]
    figure.draw_without_rendering()
    outside = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    for axes in figure.axes:
        assert not any(axes.get_window_extent().overlaps(box) for box in outside)
        notes = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for one, other in combinations(notes, 2))
        marks = [line for line in axes.get_lines() if line.get_marker() not in ("None", None)]
        for line in marks:
            points = line.get_transform().transform(np.column_stack(line.get_data()))
            assert not any(box.contains(x, y) for box in notes for x, y in points)
    assert all(0 <= box.x0 <= box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in outside)


def test_every_system_is_a_point_with_its_interval_and_the_line_joins_the_front_alone(drawn, tmp_path):
    draw_bleu_heads(sweep(), tmp_path / "figure")
    (axes,) = drawn[0].axes
    assert marked(axes, "l0") == [(13, 31.5), (14, 29.0), (19, 32.0)]
    assert axes.get_xlim()[0] > 23 > 13 > axes.get_xlim()[1], "fewer to the right"
    bars = {tuple(path.vertices[:, 1]) for bar in axes.collections for path in bar.get_paths()}
    assert {(31.0, 32.25), (28.0, 29.25), (32.5, 33.75)} <= bars
    (front,) = [
        line for line in axes.get_lines() if line.get_linestyle() == "-" and len(line.get_xdata()) > 2
    ]
    assert front.get_xydata().tolist() == [[13, 31.5], [19, 32.0], [23, 33.0]]
    beside = [heads for heads, _ in marked(axes, "greedy-finetuned")]
    assert all(0 < abs(x - heads) < 0.5 for x, heads in zip(beside, (13, 14, 19), strict=True))
    assert {text.get_text() for text in axes.texts} == {"λ 0.003", "λ 0.01", "λ 0.031"}


def test_systems_that_equal_another_are_left_out_and_gates_with_a_number_of_heads_have_no_lambda():
    rows = [each | {"lambda": None} for each in sweep()]
    series = system_series(rows)
    assert not [note for each in series for note in each.notes if note]
    with pytest.raises(ValueError, match="expected rows to draw, got no system of a finished run"):
        draw_bleu_heads([row("l0-removed", 5, 3.0), row("greedy", 23, 3.0, same_as="base")], "nowhere")


def test_where_some_systems_collapse_the_others_get_a_panel_of_their_own(drawn, tmp_path):
    draw_bleu_heads(COLLAPSED, tmp_path / "figure")
    upper, lower = drawn[0].axes
    assert 20 < upper.get_ylim()[0] < 28.5
    assert lower.get_ylim()[0] < 2
    assert [bleu for _, bleu in marked(lower, "greedy")] == [2.0, 25.0]
    assert enlarged(sweep()) is None
    low, _ = enlarged([*sweep(), row("l0", 1, 1.0, lam=1.0)])
    assert 27 < low < 28.5, "a learned run that collapsed does not flatten the others"


def test_bases_have_the_same_colours_filled_otherwise_and_a_front_each(drawn, tmp_path):
    draw_bleu_heads([*sweep(), *sweep("s2", 1.0)], tmp_path / "figure")
    lines = drawn[0].axes[0].get_lines()
    assert {line.get_fillstyle() for line in lines if line.get_marker() == "o"} == set(FILLS[:2])
    assert sum(line.get_linestyle() == "-" and line.get_marker() == "None" for line in lines) == 2


def test_the_panel_of_heads_has_a_full_mark_for_every_open_head(drawn, tmp_path):
    sites = {("enc-self", 0): [True, False, False], ("cross", 1): [True, True, False]}
    draw_bleu_heads(sweep(), tmp_path / "figure", shown=("3 of 6", sites))
    axes = drawn[0].axes[-1]
    assert [[face[3] for face in marks.get_facecolor()] for marks in axes.collections] == [
        [1, 0, 0],
        [1, 1, 0],
    ]
    assert [text.get_text() for text in axes.texts] == ["encoder self\n1 of 3", "cross\n2 of 3"]


def test_a_curve_has_its_interval_and_several_seeds_their_mean_from_lowest_to_highest(drawn, tmp_path):
    draw_curves(CURVES, tmp_path / "figure", points=[STAR])
    (axes,) = drawn[0].axes
    assert marked(axes, "gradient")[1] == (pytest.approx(500 / 23), pytest.approx(37 * (18 / 23) ** 0.3))
    bands = [band.get_paths()[0].vertices for band in axes.collections[:2]]
    at = [band[np.isclose(band[:, 0], 500 / 23), 1] for band in bands]
    assert [np.ptp(ends) for ends in at] == [pytest.approx(1.4), pytest.approx(2.0)]
    assert marked(axes, "random")[1][1] == pytest.approx(37 * (18 / 23) ** 2 + 1)
    assert marked(axes, "l0") == [(pytest.approx(1600 / 23), 35.5)]
    assert [text.get_text() for text in axes.texts] == ["λ 0.01"]


def test_the_fewest_acceptable_heads_are_named(drawn, tmp_path):
    draw_knee(KNEE, tmp_path / "figure", metric=BLEU, limit=1.0, title="")
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.texts] == ["24 of 48 heads"]
    assert marked(axes, "l0") == [(12, -2.5), (24, -1.25), (48, -0.625)]


def test_panels_of_a_comparison_are_rows_of_training_and_columns_of_closings():
    rows = panels(compared(COMPARED, continued=range(195)))
    labels = [[[series.label for series in panel.series] for panel in row] for row in rows]
    assert labels == [[["greedy"], ["greedy"]], [["greedy", "subset"], ["subset"]]], "learned gates on top"
    assert [list(panel.levels.values()) for panel in (rows[0][0], rows[1][0])] == [[95.0], [95.0, 97.5]]
    greedy = rows[1][0].series[0]
    assert (greedy.heads, greedy.values, greedy.seeds) == ([5.0], [55.0], [(5, 50.0), (5, 60.0)])
    assert greedy.low[0] < 50 < 60 < greedy.high[0]
    assert rows[0][0].series[0].heads == [17.0, 5.0], "the most heads first"


def test_rows_read_from_a_csv_file_give_the_same_figure(drawn, tmp_path):
    text = io.StringIO()
    table = csv.DictWriter(text, list(COLLAPSED[0]))
    table.writeheader()
    table.writerows(COLLAPSED)
    draw_bleu_heads(COLLAPSED, tmp_path / "numbers")
    draw_bleu_heads(list(csv.DictReader(io.StringIO(text.getvalue()))), tmp_path / "text")
    assert (tmp_path / "numbers.svg").read_bytes() == (tmp_path / "text.svg").read_bytes()


def test_nothing_to_draw_is_said(tmp_path):
    empty = Panel("", [Series("l0", look_of("l0"), [], [])])
    for grid in ([[empty]], [[replace(empty, series=[])]]):
        with pytest.raises(ValueError, match="expected rows to draw"):
            draw_scatter(grid, tmp_path / "figure", title="", xlabel="", ylabel="")
    assert not list(tmp_path.iterdir())
