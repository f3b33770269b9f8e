"""Figures from rows: what they show is what the rows say, nothing covers a point, and the same rows give the
same files."""

import csv
import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from headgates.report import drawing
from headgates.report import pruning_figures as figures
from headgates.report.pruning_figures import draw_dynamics, draw_matrix, draw_transfer, middle

RNG = np.random.default_rng(0)


def removals() -> list[dict]:
    rows = []
    for kind, layers in (("enc-self", 3), ("dec-self", 2), ("cross", 2)):
        for layer in range(layers):
            for head in range(5):
                difference = float(RNG.normal(-0.1, 0.3))
                row = {
                    "site": f"{kind}.{layer}",
                    "kind": kind,
                    "layer": layer,
                    "head": head,
                    "p_value": 0.4,
                    "p_value_holm": 1.0,
                }
                there = 0.7 * difference + float(RNG.normal(0, 0.1))
                rows.append(row | {"bleu_difference": difference, "other_bleu_difference": there})
    return rows


REMOVALS = removals()
EPOCHS = [
    {
        "epoch": epoch,
        "closed_share": tenth / 10,
        "valid_bleu": 31.0 * (1 - tenth / 10),
        "valid_bleu_relative": 1 - tenth / 10,
    }
    for epoch in (1, 2, 5)
    for tenth in range(10)
]
CORRELATED = {"names": ("multi30k", "tatoeba"), "pearson": (0.61, 2e-8), "spearman": (-0.07, 0.41)}
DRAWN = {
    "matrix": lambda path: draw_matrix(
        REMOVALS, path, title="multi30k-en-de-none-s1: BLEU without each head, minus BLEU with all of them"
    ),
    "transfer": lambda path: draw_transfer(REMOVALS, path, title="two domains", **CORRELATED),
    "dynamics": lambda path: draw_dynamics(EPOCHS, path, title="while the base trains"),
}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures_saved = []
    save = Figure.savefig

    def savefig(self, path, **options):
        if self not in figures_saved:
            figures_saved.append(self)
        save(self, path, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 60)
    return figures_saved


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_a_png_and_an_svg_that_name_no_date_and_no_version(drawn, tmp_path, name):
    DRAWN[name](tmp_path / "new" / "gradient-0.1")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "gradient-0.1.png",
        "gradient-0.1.svg",
    ]
    png, svg = ((tmp_path / "new" / f"gradient-0.1.{end}").read_bytes() for end in ("png", "svg"))
    assert png.startswith(b"\x89PNG")
    assert b"tEXtSoftware" not in png
    assert svg.startswith(b"<?xml")
    assert b"<dc:date>" not in svg
    assert matplotlib.__version__.encode() not in svg


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_rows_give_the_same_files(drawn, tmp_path, name):
    for each in ("first", "second"):
        DRAWN[name](tmp_path / each)
    for end in ("png", "svg"):
        assert (tmp_path / f"first.{end}").read_bytes() == (tmp_path / f"second.{end}").read_bytes()


def test_the_settings_of_the_caller_neither_change_a_figure_nor_are_changed(drawn, tmp_path):
    draw_dynamics(EPOCHS, tmp_path / "first")
    with matplotlib.rc_context({"font.size": 31, "axes.grid": True, "svg.fonttype": "none"}):
        before = dict(matplotlib.rcParams)
        draw_dynamics(EPOCHS, tmp_path / "second")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


@pytest.mark.parametrize("name", DRAWN)
def test_rows_read_from_a_csv_file_give_the_same_figure(drawn, tmp_path, name, monkeypatch):
    def as_text(rows):
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        return list(csv.DictReader(io.StringIO(text.getvalue())))

    DRAWN[name](tmp_path / "numbers")
    for constant in ("REMOVALS", "EPOCHS"):
        monkeypatch.setitem(globals(), constant, as_text(globals()[constant]))
    DRAWN[name](tmp_path / "text")
    assert (tmp_path / "numbers.svg").read_bytes() == (tmp_path / "text.svg").read_bytes()


@pytest.mark.parametrize("name", DRAWN)
def test_legends_and_titles_stand_outside_the_axes(drawn, tmp_path, name):
    DRAWN[name](tmp_path / "figure")
    (figure,) = drawn
    figure.draw_without_rendering()
    (legend,) = figure.legends
    boxes = [legend.get_window_extent(), figure._suptitle.get_window_extent()]
    for axes in figure.axes:
        assert axes.get_legend() is None
        assert not any(axes.get_window_extent().overlaps(box) for box in boxes)
    for box in boxes:  # and inside the paper
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1


def lines(figure):
    return {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}


# ---------------------------------------------------------------- one head at a time, two test sets, epochs


def test_the_matrix_writes_every_head_and_frames_the_significant_ones(drawn, tmp_path):
    rows = [dict(row) for row in REMOVALS]
    rows[3] |= {"p_value": 0.0001, "p_value_holm": 0.004}
    rows[4] |= {"p_value": 0.009, "p_value_holm": 0.3}
    draw_matrix(rows, tmp_path / "figure")
    panels = drawn[0].axes[:3]
    assert [panel.get_title(loc="left") for panel in panels] == list(figures.KIND_WORDS.values())
    assert sum(len(panel.texts) for panel in panels) == len(rows)
    frames = [
        (frame.get_x() + 0.44, frame.get_y() + 0.44, frame.get_linestyle()) for frame in panels[0].patches
    ]
    assert [(round(x), round(y)) for x, y, _ in frames] == [(3, 0), (4, 0)]
    assert frames[0][2] != frames[1][2]
    assert not panels[1].patches
    assert panels[0].images[0].get_array()[0, 3] == rows[3]["bleu_difference"]


def test_heads_that_a_model_does_not_have_are_left_white(drawn, tmp_path):
    draw_matrix(
        [row for row in REMOVALS if (row["kind"], row["layer"], row["head"]) != ("cross", 1, 4)],
        tmp_path / "figure",
    )
    assert np.isnan(np.ma.filled(drawn[0].axes[2].images[0].get_array(), np.nan)[1, 4])


def test_the_scatter_has_each_head_once_and_says_the_correlations(drawn, tmp_path):
    draw_transfer(REMOVALS, tmp_path / "figure", **CORRELATED)
    (axes,) = drawn[0].axes
    points = np.concatenate([np.asarray(each.get_offsets()) for each in axes.collections])
    assert sorted(points[:, 0]) == sorted(row["bleu_difference"] for row in REMOVALS)
    assert axes.get_title(loc="left") == "Pearson r = 0.61 (p < $10^{-7}$), Spearman ρ = −0.07 (p = 0.410)"
    slope, start = np.polyfit(
        *([row[name] for row in REMOVALS] for name in ("bleu_difference", "other_bleu_difference")), 1
    )
    line = lines(drawn[0])["linear regression"]
    np.testing.assert_allclose(line.get_ydata(), start + slope * np.asarray(line.get_xdata()))


def test_one_head_far_out_gets_the_others_a_panel_of_their_own(drawn, tmp_path):
    far = {"kind": "cross", "layer": 2, "head": 0, "bleu_difference": -13.56, "other_bleu_difference": -11.0}
    draw_transfer([*REMOVALS, far], tmp_path / "figure", **CORRELATED)
    whole, enlarged = drawn[0].axes
    assert sum(len(each.get_offsets()) for each in whole.collections) == len(REMOVALS) + 1
    assert enlarged.get_xlim()[0] > -2
    assert "36" in enlarged.get_title(loc="left")
    assert middle(np.array([*range(20), 500])).tolist() == [True] * 20 + [False]


def test_no_correlation_and_equal_differences_can_be_drawn(drawn, tmp_path):
    rows = [
        {"kind": "cross", "layer": 0, "head": head, "bleu_difference": 0.0, "other_bleu_difference": 0.0}
        for head in range(3)
    ]
    draw_transfer(rows, tmp_path / "figure", names=("a", "b"), pearson=None, spearman=None)
    assert drawn[0].axes[0].get_title(loc="left") == "Pearson r: none, Spearman ρ: none"


def test_dynamics_has_a_line_for_each_share_and_the_bleu_of_each_epoch(drawn, tmp_path):
    rows = [*EPOCHS, {"epoch": 7, "closed_share": 0.0, "valid_bleu": 0.0, "valid_bleu_relative": ""}]
    draw_dynamics(rows, tmp_path / "figure")
    found = lines(drawn[0])
    assert list(found) == [f"{tenth}0%" if tenth else "0%" for tenth in range(10)]
    np.testing.assert_allclose(found["30%"].get_ydata(), [70.0, 70.0, 70.0, np.nan])
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == [
        "1\n31.0",
        "2\n31.0",
        "5\n31.0",
        "7\n0.0",
    ]


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: draw_matrix([], path),
        lambda path: draw_transfer([], path, **CORRELATED),
        lambda path: draw_dynamics([], path),
    ],
    ids=list(DRAWN),
)
def test_nothing_to_draw_is_said(tmp_path, draw):
    with pytest.raises(ValueError, match="expected rows to draw, got no"):
        draw(tmp_path / "figure")
    assert not list(tmp_path.iterdir())
