"""Figures: what is drawn is what the rows say, notes and legends cover nothing, and the same rows give the
same
files whatever the caller's settings are."""

from itertools import combinations
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import Role
from headgates.configs.recipe import Recipe, Units
from headgates.gates import HeadMap, HeadSite
from headgates.report.compare_files import draw_compared, panels
from headgates.report.head_figures import (
    draw_causes,
    draw_layers,
    draw_maps,
    draw_matrix,
    draw_survival,
    kinds_sentence,
    survival_sentence,
)
from headgates.report.palette import look_of
from headgates.report.pruning_figures import draw_dynamics, draw_transfer, middle
from headgates.report.scatter import Panel, Series, draw_scatter
from tests.worlds.compared import compared, made, right

RNG = np.random.default_rng(0)


def removal(kind: str, layer: int, head: int) -> dict:
    here = float(RNG.normal(-0.1, 0.3))
    there = 0.7 * here + float(RNG.normal(0, 0.1))
    found = {"bleu_difference": here, "other_bleu_difference": there, "p_value": 0.4, "p_value_holm": 1.0}
    return HeadSite.at(kind, layer, 5).row(head) | found


LAYERS = [("enc-self", 0), ("enc-self", 1), ("enc-self", 2), ("cross", 0), ("cross", 1)]
REMOVALS = [removal(kind, layer, head) for kind, layer in LAYERS for head in range(5)]
EPOCHS = [
    {"epoch": epoch, "closed_share": share, "valid_bleu": 31.0 * left, "valid_bleu_relative": left}
    for epoch in (1, 2, 5)
    for share, left in ((0.0, 1.0), (0.3, 0.7))
]
CORRELATED = {"names": ("multi30k", "tatoeba"), "pearson": (0.61, 2e-8), "spearman": (-0.07, 0.41)}
COMPARED = [
    *(made("importance", heads, right(range(n))) for heads, n in ((17, 90), (5, 30))),
    made("importance", 5, right(range(70)), refit="out"),
    *(made("importance", 5, right(range(n)), epochs=1, seed=seed) for seed, n in ((1, 100), (2, 120))),
    *(made("subset", 5, right(range(n)), epochs=1, seed=n) for n in (130, 120)),
]
SITE = HeadSite.at("cross", 1, 3)
MAP = HeadMap({SITE: torch.tensor([0.1, 0.5, 0.9])})
DRAWN = {
    "compared": lambda path: draw_compared(compared(COMPARED), path, metric="accuracy", title="planted"),
    "matrix": lambda path: draw_matrix(
        REMOVALS, path, title="multi30k-en-de-none-s1: BLEU without each head"
    ),
    "transfer": lambda path: draw_transfer(REMOVALS, path, title="two domains", **CORRELATED),
    "dynamics": lambda path: draw_dynamics(EPOCHS, path, title="while the base trains"),
}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, save = [], Figure.savefig

    def savefig(self, path, **options):
        figures.append(self)
        save(self, path, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def notes(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", DRAWN)
def test_notes_legend_and_title_cover_nothing_and_the_files_are_the_same_again(drawn, tmp_path, name):
    DRAWN[name](tmp_path / "first")
    if name in ("compared", "matrix"):
        with matplotlib.rc_context({"font.size": 31, "axes.grid": True}):
            DRAWN[name](tmp_path / "second")
        for end in ("png", "svg"):
            assert (tmp_path / f"first.{end}").read_bytes() == (tmp_path / f"second.{end}").read_bytes()
    figure = drawn[0]
    figure.draw_without_rendering()
    outside = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    assert figure.axes
    for axes in figure.axes:
        assert not any(axes.get_window_extent().overlaps(box) for box in outside)
        texts = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for one, other in combinations(texts, 2))
        for line in (line for line in axes.get_lines() if line.get_marker() not in ("None", "", None)):
            points = line.get_transform().transform(np.column_stack(line.get_data()))
            assert not any(box.contains(x, y) for box in texts for x, y in points)
    assert all(0 <= box.x0 <= box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in outside)


# ---------------------------------------------------------------- comparisons


def test_panels_of_a_comparison_are_rows_of_training_and_columns_of_closings():
    rows = panels(compared(COMPARED, continued=range(195)))
    labels = [[[series.label for series in panel.series] for panel in row] for row in rows]
    michel, subset = "importance", "learned subset"
    assert labels == [[[michel], [michel]], [[michel, subset], [subset]]], "learned gates on top"
    assert [list(panel.levels.values()) for panel in (rows[0][0], rows[1][0])] == [[95.0], [95.0, 97.5]]
    importance = rows[1][0].series[0]
    assert (importance.heads, importance.values, importance.seeds) == ([5.0], [55.0], [(5, 50.0), (5, 60.0)])
    assert importance.low[0] < 50 < 60 < importance.high[0]
    assert rows[0][0].series[0].heads == [17.0, 5.0], "the most heads first"


# ---------------------------------------------------------------- one head at a time, two test sets, epochs


def test_the_matrix_writes_every_head_and_frames_the_significant_ones(drawn, tmp_path):
    rows = [dict(row) for row in REMOVALS[:-1]]
    rows[3] |= {"p_value": 0.0001, "p_value_holm": 0.004}
    rows[4] |= {"p_value": 0.009, "p_value_holm": 0.3}
    draw_matrix(rows, tmp_path / "figure")
    above, below, _ = drawn[0].axes
    assert sum(len(panel.texts) for panel in (above, below)) == len(rows)
    frames = [(round(box.get_x() + 0.44), round(box.get_y() + 0.44)) for box in above.patches]
    assert frames == [(3, 0), (4, 0)]
    assert above.patches[0].get_linestyle() != above.patches[1].get_linestyle()
    assert not below.patches
    assert above.images[0].get_array()[0, 3] == rows[3]["bleu_difference"]
    assert np.isnan(np.ma.filled(below.images[0].get_array(), np.nan)[1, 4]), "white: no such head"


def test_a_head_has_one_letter_for_each_family_of_its_roles(drawn, tmp_path):
    roles = [
        Role(site=SITE, head=1, role=words, family=family, score=1.0, baseline=0.0, needed=0.5, words="")
        for words, family in zip("abc", ("positional", "positional", "aligned"), strict=True)
    ]
    draw_maps({"confidence": MAP}, roles, tmp_path / "figure")
    assert notes(drawn[0].axes[0]) == ["", "PA", ""]


def test_the_places_of_heads_by_a_score_are_counted_from_the_most(drawn, tmp_path):
    maps = {"loss": MAP, "integrated": HeadMap({SITE: torch.tensor([7.0, 9.0, 5.0])})}
    row = {"approximation": "loss (exact)", "spearman": 1.0, "seconds": None}
    rows = [row, row | {"approximation": "integrated", "spearman": -0.5}]
    draw_causes(AnalysisResult(maps, {}, {"causes": rows}), tmp_path / "figure")
    (points,) = [line.get_xydata().tolist() for line in drawn[0].axes[0].lines if line.get_marker() == "^"]
    assert points == [[2, 3], [1, 2], [3, 1]]
    assert drawn[0].axes[0].get_title(loc="left") == "integrated: -0.50"


def test_bars_are_the_open_heads_of_each_role(drawn, tmp_path):
    rows = [
        {"kind": "cross", "run": run, "role": role, "score": score}
        for run, role, score in (("a", "aligned", 1.5), ("a", "no role", 0.5), ("b", "aligned", 1.0))
    ]
    draw_survival(rows, tmp_path / "figure")
    (axes,) = drawn[0].axes
    assert [bar.get_height() for bar in axes.patches] == [1.5, 1.0, 0.5, 0.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a\n2 open", "b\n1 open"]


def test_the_scatter_has_each_head_once_and_says_the_correlations(drawn, tmp_path):
    draw_transfer(REMOVALS, tmp_path / "figure", **CORRELATED)
    (axes,) = drawn[0].axes
    x, y = ([row[name] for row in REMOVALS] for name in ("bleu_difference", "other_bleu_difference"))
    dots = [line for line in axes.get_lines() if line.get_marker() in ("o", "s", "^")]
    assert sorted(value for line in dots for value in line.get_xdata()) == sorted(x)
    assert axes.get_title(loc="left") == "Pearson r = 0.61 (p < 1e−07), Spearman ρ = −0.07 (p = 0.410)"
    slope, start = np.polyfit(x, y, 1)
    (line,) = [line for line in axes.get_lines() if line.get_linestyle() == "-"]
    np.testing.assert_allclose(line.get_ydata(), start + slope * np.asarray(line.get_xdata()))


def test_one_head_far_out_gets_the_others_a_panel_of_their_own(drawn, tmp_path):
    far = REMOVALS[-1] | {"bleu_difference": -13.56, "other_bleu_difference": -11.0}
    draw_transfer([*REMOVALS, far], tmp_path / "figure", **CORRELATED)
    whole, near = drawn[0].axes
    assert whole.get_xlim()[0] < -13 < -2 < near.get_xlim()[0]
    assert middle(np.array([*range(20), 500])).tolist() == [True] * 20 + [False]


def test_no_correlation_and_equal_differences_can_be_drawn(drawn, tmp_path):
    rows = [row | {"bleu_difference": 0.0, "other_bleu_difference": 0.0} for row in REMOVALS]
    draw_transfer(rows, tmp_path / "figure", names=("a", "b"), pearson=None, spearman=None)
    assert drawn[0].axes[0].get_title(loc="left") == "Pearson r: none, Spearman ρ: none"


def test_dynamics_has_a_line_for_each_share_and_the_bleu_of_each_epoch(drawn, tmp_path):
    rows = [*EPOCHS, {"epoch": 7, "closed_share": 0.3, "valid_bleu": 0.0, "valid_bleu_relative": None}]
    draw_dynamics(rows, tmp_path / "figure")
    (axes,) = drawn[0].axes
    lines = [line.get_ydata() for line in axes.get_lines() if line.get_linestyle() == "-"]
    np.testing.assert_allclose(lines[0], [100, 100, 100])
    np.testing.assert_allclose(lines[1], [70, 70, 70, np.nan])
    assert notes(axes) == ["31.0", "31.0", "31.0"]


def test_nothing_to_draw_is_said(tmp_path):
    path, empty = tmp_path / "figure", Panel("", [Series("l0", look_of("l0"), [], [])])
    for draw in (
        lambda: draw_scatter([[empty]], path, title="", xlabel="", ylabel=""),
        lambda: draw_matrix([], path),
        lambda: draw_transfer([], path, **CORRELATED),
        lambda: draw_dynamics([], path),
        lambda: draw_survival([], path),
    ):
        with pytest.raises(ValueError, match="expected rows to draw"):
            draw()
    assert not list(tmp_path.iterdir())


def test_head_figures_have_findings_as_titles_and_layers_of_equal_numbers_can_be_told_apart(drawn, tmp_path):
    sites = (HeadSite.at("cross", layer, 3) for layer in (0, 1))
    is_open = HeadMap({site: torch.tensor([True, True, False]) for site in sites})
    row, recipe = SimpleNamespace(heads_open=4), Recipe("importance", Units(4))
    run = SimpleNamespace(open=is_open, row=row, recipe=recipe, name="a")
    assert kinds_sentence(run) == "With 4 heads, these stay open: 4 of 6 cross attention"
    rows = [
        {"kind": "all", "run": run, "heads_open": open_, "role": role, "heads": heads, "at_first": first}
        for run, open_ in (("base", 6), ("a", 4))
        for role, heads, first in (("aligned", 2, 2), ("no role", open_ - 2, 4), ("positional", 0, 0))
    ]
    assert survival_sentence(rows) == "With 4 heads, these stay open: 2 of 2 aligned, 2 of 4 without a role"
    draw_layers([run], tmp_path / "figure")
    lines = [line.get_ydata() for line in drawn[-1].axes[0].lines if line.get_marker() in ("o", "s")]
    assert len(lines) == 2
    assert np.abs(lines[0] - lines[1]).min() > 0.05
