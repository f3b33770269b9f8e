"""The figure of a comparison: which curves stand in which panel, what of them is drawn, and that the same
points give the same files."""

import pytest
from matplotlib.figure import Figure

from headgates.report import drawing
from headgates.report.compare_figure import draw_compared, panels
from headgates.report.palette import look_of
from tests.worlds.compared import compared, point, right

POINTS = [
    *(point("greedy", heads, right(range(n))) for heads, n in ((17, 90), (5, 30))),
    *(point("greedy", heads, right(range(n)), closing="repair") for heads, n in ((17, 110), (5, 70))),
    *(point("greedy", 5, right(range(n)), epochs=1, seed=seed) for seed, n in ((1, 100), (2, 120))),
    *(
        point("subset", 5, right(range(n)), epochs=1, seed=seed, learned=True)
        for seed, n in ((1, 130), (2, 120))
    ),
    point("l0", 8, right(range(125)), epochs=1, lam=0.1, learned=True),
]


def test_panels_are_rows_of_training_and_columns_of_closings():
    rows = panels(compared(POINTS))
    assert [[panel.title for panel in row] for row in rows] == [
        ["without training, closed heads: zero", "without training, closed heads: repair"],
        ["with 1 epoch of training, closed heads: zero", "with 1 epoch of training, closed heads: repair"],
    ]
    methods = [[[curve.method for curve in panel.curves] for panel in row] for row in rows]
    assert methods == [[["greedy"], ["greedy"]], [["greedy", "l0", "subset"], ["l0", "subset"]]], (
        "learned gates in every column, on top"
    )
    (only,) = panels(compared(POINTS[:2]))
    assert [panel.title for panel in only] == ["without training"]


def test_a_curve_is_the_mean_over_seeds_with_a_band_and_a_point_for_each_seed():
    (_, (panel, _)) = panels(compared(POINTS))
    greedy = next(curve for curve in panel.curves if curve.method == "greedy")
    assert (greedy.heads, greedy.mean) == ([5.0], [pytest.approx(55.0)])
    assert greedy.seeds == [(5, pytest.approx(50.0)), (5, pytest.approx(60.0))]
    assert greedy.low[0] < 50 < 60 < greedy.high[0]
    ((first, _), _) = panels(compared(POINTS))
    assert first.curves[0].heads == [17.0, 5.0], "the most heads first"


def test_what_is_drawn_is_what_the_panels_say(tmp_path, monkeypatch):
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, **options: (figures.append(self), save(self, path, **options))
    )
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 40)
    made = compared(POINTS, continued=range(195))
    draw_compared(made, tmp_path / "figure", metric="accuracy", title="planted")
    rows, axes = panels(made), figures[0].axes
    assert len(axes) == 4
    for panel, one in zip([panel for row in rows for panel in row], axes, strict=True):
        assert one.xaxis_inverted()
        for curve in panel.curves:
            lines = [
                line for line in one.get_lines() if line.get_color() == look_of(curve.method).colour.light
            ]
            mean, seeds = (
                next(line for line in lines if (line.get_linestyle() == "None") is alone)
                for alone in (False, True)
            )
            assert list(mean.get_ydata()) == pytest.approx(curve.mean)
            assert list(seeds.get_xdata()) == [heads for heads, _ in curve.seeds]
            assert list(seeds.get_ydata()) == pytest.approx([value for _, value in curve.seeds])
        levels = [
            line.get_ydata()[0]
            for line in one.get_lines()
            if len(set(line.get_xdata())) == 2 and list(line.get_xdata()) == [0, 1]
        ]
        assert levels == [pytest.approx(95.0)] + ([pytest.approx(97.5)] if panel.epochs else [])
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert labels == ["l0", "subset", "greedy", "base", "base-continued"]
    before = (tmp_path / "figure.svg").read_bytes()
    draw_compared(made, tmp_path / "figure", metric="accuracy", title="planted")
    assert (tmp_path / "figure.svg").read_bytes() == before


def test_without_a_point_there_is_no_figure(tmp_path):
    with pytest.raises(ValueError, match="no point of a comparison"):
        draw_compared(compared([]), tmp_path / "figure", metric="accuracy", title="")
