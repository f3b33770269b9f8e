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

from headgates.analysis.metrics import BLEU
from headgates.analysis.roles import Role
from headgates.gates import HeadMap, HeadSite
from headgates.report.bleu_heads import FILLS, draw_bleu_heads, enlarged, system_series
from headgates.report.compare_files import draw_compared, panels
from headgates.report.head_figures import (
    draw_layers,
    draw_maps,
    draw_matrix,
    draw_survival,
    kinds_sentence,
    survival_sentence,
)
from headgates.report.palette import look_of
from headgates.report.pruning_figures import draw_curves, draw_dynamics, draw_knee, draw_transfer, middle
from headgates.report.scatter import Panel, Series, draw_scatter
from tests.worlds.compared import compared, point, right

RNG = np.random.default_rng(0)


def row(system: str, heads: int, bleu: float, *, base: str = "s1", lam: float | None = None, **more) -> dict:
    interval = {"bleu": bleu, "bleu_low": bleu - 0.5, "bleu_high": bleu + 0.75}
    known = {"base": base, "lambda": lam, "kinds": "cross" if lam else None, "system": system}
    heads_of = {"heads_open": heads, "heads_total": 23, "reference": "base", "same_as": None}
    return {**known, **heads_of, **interval, "on_front": 0, "learned": int(system == "l0"), **more}


def sweep(base: str = "s1", worse: float = 0.0) -> list[dict]:
    rows = [row("base", 23, 33 - worse, base=base, on_front=1), row("base-continued", 23, 32.5, base=base)]
    for lam, heads, bleu, front in ((0.003, 19, 32.0, 1), (0.01, 13, 31.5, 1), (0.031, 14, 29.0, 0)):
        rows.append(row("l0", heads, bleu - worse, base=base, lam=lam, on_front=front))
        rows.append(row("l0-removed", heads, bleu - worse, base=base, lam=lam))
        rows.append(row("importance", heads, bleu - 0.5 - worse, base=base, lam=lam))
    return rows


def pruned(fall: float, seeds=("",)) -> list[dict]:
    rows = []
    for number, seed in enumerate(seeds):
        for closed in (0, 5, 14, 23):
            bleu = 37.0 * (1 - closed / 23) ** fall + number * (0 < closed < 23)
            ends = {f"test_bleu{end}": bleu + add for end, add in (("", 0), ("_low", -0.7), ("_high", 0.7))}
            rows.append({"seed": seed, "closed_share": closed / 23, **ends})
    return rows


def removal(kind: str, layer: int, head: int) -> dict:
    here = float(RNG.normal(-0.1, 0.3))
    there = 0.7 * here + float(RNG.normal(0, 0.1))
    differences = {"bleu_difference": here, "other_bleu_difference": there}
    return {"kind": kind, "layer": layer, "head": head, "p_value": 0.4, "p_value_holm": 1.0, **differences}


REMOVALS = [
    removal(kind, layer, head)
    for kind, layers in (("enc-self", 3), ("cross", 2))
    for layer in range(layers)
    for head in range(5)
]
EPOCHS = [
    {
        "epoch": epoch,
        "closed_share": share,
        "valid_bleu": 31.0 * (1 - share),
        "valid_bleu_relative": 1 - share,
    }
    for epoch in (1, 2, 5)
    for share in (0.0, 0.3)
]
CORRELATED = {"names": ("multi30k", "tatoeba"), "pearson": (0.61, 2e-8), "spearman": (-0.07, 0.41)}
COLLAPSED = [*sweep(), row("importance", 5, 2.0, lam=0.1), row("importance", 13, 25.0, lam=0.01)]
CURVES = {"importance": pruned(0.3), "random": pruned(2.0, seeds=(1, 2, 3))}
STAR = {"label": "λ 0.01", "heads_open": 7, "heads_total": 23, "bleu": 35.5, "bleu_low": 34, "bleu_high": 36}
KNEE = [
    {"heads_open": n, "heads_total": 48, "drop": 30 / n, "drop_bound": 31 / n, "acceptable": n > 20}
    for n in (12, 24, 48)
]
COMPARED = [
    *(point("importance", heads, right(range(n))) for heads, n in ((17, 90), (5, 30))),
    point("importance", 5, right(range(70)), closing="out"),
    *(point("importance", 5, right(range(n)), epochs=1, seed=seed) for seed, n in ((1, 100), (2, 120))),
    *(point("subset", 5, right(range(n)), epochs=1, seed=n) for n in (130, 120)),
]
SITE = HeadSite.at("cross", 1, 3)
MAP = HeadMap({SITE: torch.tensor([0.1, 0.5, 0.9])})
DRAWN = {
    "systems": lambda path: draw_bleu_heads(COLLAPSED, path, title="toy"),
    "curves": lambda path: draw_curves(CURVES, path, points=[STAR], title="orders"),
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


def marked(axes, system: str) -> list[tuple[float, float]]:
    """The points of a system in an axes."""
    look = look_of(system)
    lines = [line for line in axes.get_lines() if line.get_color() == look.colour.light]
    lines = [line for line in lines if line.get_marker() == look.marker]
    return sorted(tuple(map(float, pair)) for line in lines for pair in zip(*line.get_data(), strict=True))


def notes(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", DRAWN)
def test_notes_legend_and_title_cover_nothing_and_the_files_are_the_same_again(drawn, tmp_path, name):
    DRAWN[name](tmp_path / "first")
    if name in ("systems", "matrix"):
        with matplotlib.rc_context({"font.size": 31, "axes.grid": True}):
            DRAWN[name](tmp_path / "second")
        for end in ("png", "svg"):
            assert (tmp_path / f"first.{end}").read_bytes() == (tmp_path / f"second.{end}").read_bytes()
    figure = drawn[0]
    figure.draw_without_rendering()
    outside = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    for axes in figure.axes:
        assert not any(axes.get_window_extent().overlaps(box) for box in outside)
        texts = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for one, other in combinations(texts, 2))
        for line in (line for line in axes.get_lines() if line.get_marker() not in ("None", "", None)):
            points = line.get_transform().transform(np.column_stack(line.get_data()))
            assert not any(box.contains(x, y) for box in texts for x, y in points)
    assert all(0 <= box.x0 <= box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in outside)


# ---------------------------------------------------------------- systems, comparisons, curves


def test_every_system_is_a_point_with_its_interval_and_the_line_joins_the_front_alone(drawn, tmp_path):
    draw_bleu_heads(sweep(), tmp_path / "figure")
    (axes,) = drawn[0].axes
    assert marked(axes, "l0") == [(13, 31.5), (14, 29.0), (19, 32.0)]
    assert axes.get_xlim()[0] > 23 > 13 > axes.get_xlim()[1], "fewer to the right"
    bars = {tuple(path.vertices[:, 1]) for bar in axes.collections for path in bar.get_paths()}
    assert {(31.0, 32.25), (28.0, 29.25), (32.5, 33.75)} <= bars
    fronts = [line for line in axes.get_lines() if line.get_linestyle() == "-"]
    assert [[13, 31.5], [19, 32.0], [23, 33.0]] in [line.get_xydata().tolist() for line in fronts]
    beside = [heads for heads, _ in marked(axes, "importance")]
    assert all(0 < abs(x - heads) < 0.5 for x, heads in zip(beside, (13, 14, 19), strict=True))
    assert set(notes(axes)) == {"λ 0.003", "λ 0.01", "λ 0.031"}


def test_systems_that_equal_another_are_left_out_and_gates_with_a_number_of_heads_have_no_lambda():
    series = system_series([each | {"lambda": None} for each in sweep()])
    assert not [note for each in series for note in each.notes if note]
    with pytest.raises(ValueError, match="expected rows to draw, got no system of a finished run"):
        draw_bleu_heads([row("l0-removed", 5, 3.0), row("importance", 23, 3.0, same_as="base")], "nowhere")


def test_where_some_systems_collapse_the_others_get_a_panel_of_their_own(drawn, tmp_path):
    draw_bleu_heads(COLLAPSED, tmp_path / "figure")
    upper, lower = drawn[0].axes
    assert 20 < upper.get_ylim()[0] < 28.5
    assert lower.get_ylim()[0] < 2
    assert [bleu for _, bleu in marked(lower, "importance")][:2] == [2.0, 25.0]
    assert enlarged(sweep()) is None
    low, _ = enlarged([*sweep(), row("l0", 1, 1.0, lam=1.0)])
    assert 27 < low < 28.5, "a learned run that collapsed does not flatten the others"


def test_bases_have_the_same_colours_filled_otherwise_and_a_front_each():
    series = system_series([*sweep(), *sweep("s2", 1.0)])
    assert {each.fill for each in series if each.look == look_of("l0") and each.marked} == set(FILLS[:2])
    assert [each.values.tolist() for each in series if each.joined] == [[31.5, 32, 33], [30.5, 31, 32]]


def test_a_curve_has_its_interval_and_several_seeds_their_mean_from_lowest_to_highest(drawn, tmp_path):
    draw_curves(CURVES, tmp_path / "figure", points=[STAR])
    (axes,) = drawn[0].axes
    assert marked(axes, "importance")[1] == (pytest.approx(500 / 23), pytest.approx(37 * (18 / 23) ** 0.3))
    bands = [band.get_paths()[0].vertices for band in axes.collections[:2]]
    at = [band[np.isclose(band[:, 0], 500 / 23), 1] for band in bands]
    assert [np.ptp(ends) for ends in at] == [pytest.approx(1.4), pytest.approx(2.0)]
    assert marked(axes, "random")[1][1] == pytest.approx(37 * (18 / 23) ** 2 + 1)
    assert marked(axes, "l0") == [(pytest.approx(1600 / 23), 35.5)]
    assert notes(axes) == ["λ 0.01"]


def test_the_fewest_acceptable_heads_are_named(drawn, tmp_path):
    draw_knee(KNEE, tmp_path / "figure", metric=BLEU, limit=1.0, title="")
    (axes,) = drawn[0].axes
    assert notes(axes) == ["24 of 48 heads"]
    assert marked(axes, "l0") == [(12, -2.5), (24, -1.25), (48, -0.625)]


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
        for words, family in (
            ("position -1", "positional"),
            ("position 1", "positional"),
            ("aligned", "aligned"),
        )
    ]
    draw_maps({"confidence": MAP}, roles, tmp_path / "figure")
    assert notes(drawn[0].axes[0]) == ["", "PA", ""]


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
    far = {"kind": "cross", "layer": 2, "head": 0, "bleu_difference": -13.56, "other_bleu_difference": -11.0}
    draw_transfer([*REMOVALS, far], tmp_path / "figure", **CORRELATED)
    whole, near = drawn[0].axes
    assert whole.get_xlim()[0] < -13 < -2 < near.get_xlim()[0]
    assert middle(np.array([*range(20), 500])).tolist() == [True] * 20 + [False]


def test_no_correlation_and_equal_differences_can_be_drawn(drawn, tmp_path):
    rows = [
        {"kind": "cross", "layer": 0, "head": head, "bleu_difference": 0.0, "other_bleu_difference": 0.0}
        for head in range(3)
    ]
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
    run = SimpleNamespace(open=is_open, row=SimpleNamespace(heads_open=4), label="a", name="a")
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
