"""The figure of a sweep: what is drawn is what the rows say, labels cover nothing, and the same rows give the
same files."""

import csv
import io
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from headgates.report import drawing
from headgates.report.bleu_heads_figure import (
    FILLS,
    HeadsPanel,
    draw_bleu_heads,
    is_drawn,
    marker_look,
    ranges,
)
from headgates.report.palette import KIND_COLOURS, LOOKS, look_of

ROOT = Path(__file__).resolve().parents[2]
ALL = "enc-self+dec-self+cross"


def row(
    system: str,
    heads: int,
    bleu: float,
    *,
    base: str = "toy-none-s1",
    lam: float | None = None,
    front: int = 0,
    **more,
) -> dict:
    found = {
        "run": "run",
        "base": base,
        "seed": 1,
        "lambda": lam,
        "kinds": ALL if lam else None,
        "system": system,
        "heads_open": heads,
    }
    found |= {
        "heads_total": 23,
        "bleu": bleu,
        "bleu_low": bleu - 0.5,
        "bleu_high": bleu + 0.75,
        "reference": "base",
        "same_as": None,
    }
    return found | {"on_front": front} | more


def sweep(base: str = "toy-none-s1", worse: float = 0.0) -> list[dict]:
    rows = [
        row("base", 23, 33 - worse, base=base, front=1),
        row("base-continued", 23, 32.5 - worse, base=base),
    ]
    for lam, heads, bleu, front in (
        (0.003, 19, 32.0, 1),
        (0.01, 13, 31.5, 1),
        (0.0313, 14, 29.0, 0),
        (0.1, 5, 29.5, 1),
    ):
        rows.append(row("l0", heads, bleu - worse, base=base, lam=lam, front=front))
        rows.append(row("l0-removed", heads, bleu - worse, base=base, lam=lam))
        rows.append(row("greedy-finetuned", heads, bleu - 0.5 - worse, base=base, lam=lam))
    return rows


ROWS = sweep()
COLLAPSED = [
    *ROWS,
    row("greedy", 5, 2.0, lam=0.1),
    row("greedy", 13, 25.0, lam=0.01),
    row("greedy", 19, 31.0, lam=0.003),
]
SEEDS = [*sweep(), *sweep("toy-none-s2", 1.0), *sweep("toy-none-s3", -0.3)]
CASES = {"one base": ROWS, "collapsed": COLLAPSED, "three bases": SEEDS}
TITLE = "toy-en-de: BLEU against open heads"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures = []
    save = Figure.savefig

    def savefig(self, path, **options):
        if self not in figures:
            figures.append(self)
        save(self, path, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 50)
    return figures


def markers(axes, system: str) -> list[tuple[float, float]]:
    """The points of a system in an axes."""
    look = look_of(system)
    found = [
        line
        for line in axes.get_lines()
        if (line.get_color(), line.get_marker()) == (look.colour.light, look.marker)
    ]
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in found)


def points(rows, system: str) -> list[tuple[float, float]]:
    return sorted((row["heads_open"], row["bleu"]) for row in rows if row["system"] == system)


def test_every_run_is_a_point_with_its_interval(drawn, tmp_path):
    draw_bleu_heads(ROWS, tmp_path / "figure")
    (axes,) = drawn[0].axes
    for system in ("l0", "greedy-finetuned", "base", "base-continued"):
        assert markers(axes, system) == points(ROWS, system)
    bars = {
        tuple(line.get_ydata())
        for line in axes.get_lines()
        if len(line.get_xdata()) == 2 and np.ptp(line.get_xdata()) == 0
    }
    assert {(row["bleu_low"], row["bleu_high"]) for row in ROWS if is_drawn(row)} <= bars
    assert axes.get_xlabel() == "open heads, of 23 (fewer to the right)"


def test_open_heads_fall_to_the_right_as_closed_heads_grow_on_the_page_and_in_curves(drawn, tmp_path):
    draw_bleu_heads(COLLAPSED, tmp_path / "figure")
    pages_words = re.search(
        r'"(open heads \(fewer to the right\))"', (ROOT / "report/curves.js").read_text(encoding="utf-8")
    )
    assert pages_words
    assert all(axes.get_xlim()[0] > 23 > 5 > axes.get_xlim()[1] for axes in drawn[0].axes)
    assert drawn[0].axes[-1].get_xlabel().replace(", of 23", "") == pages_words[1]


def test_the_line_joins_the_front_alone(drawn, tmp_path):
    draw_bleu_heads(ROWS, tmp_path / "figure")
    (line,) = [
        line
        for line in drawn[0].axes[0].get_lines()
        if line.get_color() == LOOKS["l0"].colour.light and len(line.get_xdata()) > 2
    ]
    np.testing.assert_allclose(line.get_xdata(), [5, 13, 19, 23])
    np.testing.assert_allclose(line.get_ydata(), [29.5, 31.5, 32.0, 33.0])


def test_systems_of_equal_heads_stand_beside_one_another(drawn, tmp_path):
    draw_bleu_heads(ROWS, tmp_path / "figure")
    axes = drawn[0].axes[0]
    at = {}
    for system in ("l0", "greedy-finetuned"):
        (line,) = [
            line
            for line in axes.get_lines()
            if line.get_marker() == LOOKS[system].marker and tuple(line.get_xdata()) == (13,)
        ]
        at[system] = line.get_transform().transform((13, 30))[0]
    assert abs(at["greedy-finetuned"] - at["l0"]) == pytest.approx(7 / 72 * drawn[0].dpi)


def test_rows_that_repeat_a_base_and_copies_of_l0_are_not_drawn_again(drawn, tmp_path):
    draw_bleu_heads([*ROWS, row("greedy", 23, 33.0, lam=0.003, same_as="base")], tmp_path / "figure")
    shown = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert shown == ["l0", "greedy-finetuned", "base", "base-continued", "the reference, base"]


def test_where_some_systems_collapse_the_others_get_a_panel_of_their_own(drawn, tmp_path):
    draw_bleu_heads(COLLAPSED, tmp_path / "figure")
    enlarged, whole = drawn[0].axes
    assert enlarged.get_ylim()[0] > 27.5
    assert whole.get_ylim()[0] < 2
    assert markers(whole, "greedy") == points(COLLAPSED, "greedy")
    assert "enlarged" in enlarged.get_title(loc="left")
    assert ranges([row for row in ROWS if is_drawn(row)])[1] is None


def test_a_learned_run_that_collapsed_does_not_flatten_the_others():
    whole, near = ranges([*ROWS, row("l0", 1, 1.0, lam=1.0, front=1)])
    assert whole[0] < 1
    assert 27 < near[0] < 28


def test_bases_have_the_same_colours_filled_otherwise(drawn, tmp_path):
    draw_bleu_heads(SEEDS, tmp_path / "figure")
    (axes,) = drawn[0].axes
    assert markers(axes, "l0") == points(SEEDS, "l0")
    fills = {line.get_fillstyle() for line in axes.get_lines() if line.get_marker() == "o"}
    assert fills == set(FILLS[:3])
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()][-3:] == [
        "toy-none-s1",
        "toy-none-s2",
        "toy-none-s3",
    ]
    assert len([line for line in axes.get_lines() if len(line.get_xdata()) == 4]) == 3


def test_no_two_fills_look_alike():
    assert len({marker_look("l0", base)["fillstyle"] for base in range(len(FILLS))}) == len(FILLS)


def test_a_system_that_the_palette_does_not_name_is_drawn_and_named(drawn, tmp_path):
    later = [row("exact-k", heads, 30.0 + heads / 10, lam=0.1, learned=1) for heads in (7, 11)]
    rows = [
        *({**each, "learned": int(each["system"] == "l0")} for each in ROWS),
        *later,
        row("exact-k-removed", 7, 30.7, learned=0),
    ]
    draw_bleu_heads(rows, tmp_path / "figure")
    assert markers(drawn[0].axes[0], "exact-k") == points(later, "exact-k")
    assert "exact-k" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert len(drawn[0].axes[0].texts) == 4 + 2, "lambda beside every learned point"


def test_gates_that_were_told_a_number_of_heads_have_no_lambda_beside_their_points(drawn, tmp_path):
    draw_bleu_heads([row | {"lambda": None} for row in COLLAPSED], tmp_path / "figure", title=TITLE)
    assert [text.get_text() for axes in drawn[0].axes for text in axes.texts] == []


def test_the_panel_of_heads_has_a_full_mark_for_every_open_head(drawn, tmp_path):
    sites = {
        ("enc-self", 0): [True, False, False],
        ("dec-self", 0): [True, True, False],
        ("cross", 1): [False, False, False],
    }
    draw_bleu_heads(COLLAPSED, tmp_path / "figure", title=TITLE, panel=HeadsPanel("λ 0.1: 3 of 9", sites))
    axes = drawn[0].axes[-1]
    assert axes.get_title(loc="left") == "λ 0.1: 3 of 9"
    full = [marks for marks in axes.collections if len(marks.get_facecolor())]
    assert (len(axes.collections), len(full)) == (9, 3)
    assert [text.get_text() for text in axes.texts] == [
        "encoder self\n1 of 3",
        "decoder self\n2 of 3",
        "cross\n0 of 3",
    ]
    assert [text.get_color() for text in axes.texts] == list(KIND_COLOURS.values())


@pytest.mark.parametrize("case", CASES)
def test_labels_cover_neither_one_another_nor_a_point(drawn, tmp_path, case):
    draw_bleu_heads(CASES[case], tmp_path / "figure", title=TITLE)
    figure = drawn[0]
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert boxes
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
    for line in axes.get_lines():
        if len(line.get_xdata()) == 1:
            x, y = line.get_transform().transform((line.get_xdata()[0], line.get_ydata()[0]))
            assert not any(box.contains(x, y) for box in boxes)


def test_every_lambda_of_a_small_sweep_is_written_beside_its_point(drawn, tmp_path):
    draw_bleu_heads(ROWS, tmp_path / "figure", title=TITLE)
    texts = {text.get_text(): text.xy for text in drawn[0].axes[0].texts}
    assert texts == {"λ 0.003": (19, 32.0), "λ 0.01": (13, 31.5), "λ 0.031": (14, 29.0), "λ 0.1": (5, 29.5)}


def test_the_kinds_are_written_where_the_runs_differ_in_them(drawn, tmp_path):
    draw_bleu_heads(
        [row("l0", 20, 31.0, lam=0.01, kinds="enc-self"), row("l0", 11, 30.0, lam=0.01)], tmp_path / "figure"
    )
    assert sorted(text.get_text() for text in drawn[0].axes[0].texts) == ["λ 0.01", "λ 0.01, enc-self"]


@pytest.mark.parametrize("case", CASES)
def test_legend_and_title_stand_outside_the_axes(drawn, tmp_path, case):
    draw_bleu_heads(CASES[case], tmp_path / "figure", title=TITLE)
    figure = drawn[0]
    figure.draw_without_rendering()
    boxes = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    for axes in figure.axes:
        assert not any(axes.get_window_extent().overlaps(box) for box in boxes)
    for box in boxes:
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_rows_read_from_a_csv_file_give_the_same_figure_and_the_same_rows_the_same_files(drawn, tmp_path):
    text = io.StringIO()
    table = csv.DictWriter(text, list(COLLAPSED[0]))
    table.writeheader()
    table.writerows(COLLAPSED)
    draw_bleu_heads(COLLAPSED, tmp_path / "numbers", title=TITLE)
    draw_bleu_heads(list(csv.DictReader(io.StringIO(text.getvalue()))), tmp_path / "text", title=TITLE)
    for end in ("png", "svg"):
        content = (tmp_path / f"numbers.{end}").read_bytes()
        assert content == (tmp_path / f"text.{end}").read_bytes()
        assert matplotlib.__version__.encode() not in content
    assert b"<dc:date>" not in (tmp_path / "numbers.svg").read_bytes()


def test_one_run_alone_can_be_drawn(drawn, tmp_path):
    draw_bleu_heads([row("base", 23, 33.0, front=1, bleu_low=33.0, bleu_high=33.0)], tmp_path / "figure")
    assert markers(drawn[0].axes[0], "base") == [(23, 33.0)]


def test_nothing_to_draw_is_said(tmp_path):
    with pytest.raises(ValueError, match="expected rows to draw, got no system of a finished run"):
        draw_bleu_heads([], tmp_path / "figure")
    assert not list(tmp_path.iterdir())


def test_pyplot_and_its_global_state_are_never_imported():
    script = "import sys, report.bleu_heads_figure; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
