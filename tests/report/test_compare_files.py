"""The files of a comparison: a row a run, what made them, and what the report page of the base takes from
them."""

import base64
import json

import pytest

from headgates.analysis.metrics import ACCURACY
from headgates.records.folder import RunFolder
from headgates.records.table import read_table
from headgates.report.compare_files import (
    comparisons_of,
    leads,
    show_compared,
    write_compared,
)
from tests.worlds.compared import compared, point, right

POINTS = [
    point("importance", 5, right(range(40))),
    *(
        point("importance", 5, right(range(n)), epochs=1, seed=seed, loss=1.25)
        for seed, n in ((1, 100), (2, 120))
    ),
    point("l0", 8, right(range(125)), epochs=1, lam=0.1),
]
RUNS = {
    point.run: {"command": f"python fit.py --name {point.run}", "seed": 1, "commit": "0123abc"}
    for point in POINTS
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """(folder, sentences) of a comparison beside a base."""
    base, folder = RunFolder(tmp_path / "base"), RunFolder(tmp_path / "compare-planted")
    base.write_text("config.yaml", "run_hash: abc123abc123\n")
    folder.path.mkdir()
    about = {"base": "base", "base_hash": "abc123abc123"}
    made = compared(POINTS, continued=range(195))
    said = write_compared(
        made,
        folder,
        metrics=[ACCURACY],
        title="planted",
        about=about,
        runs=RUNS,
        failed=["random at 5"],
        report=lambda text: None,
    )
    return folder, said


def test_the_table_has_a_row_for_every_run_the_bases_first(written):
    folder, _ = written
    rows = read_table(folder, "compare.csv")
    assert [row["run"] for row in rows[2:]] == [POINTS[0].run, POINTS[3].run, POINTS[1].run, POINTS[2].run]
    assert [row["method"] for row in rows[:2]] == ["base", "base-continued"]
    importance = rows[-1]
    assert (importance["heads_asked"], importance["heads_open"], importance["seed"], importance["loss"]) == (
        5,
        5,
        2,
        1.25,
    )
    assert (importance["accuracy"], importance["accuracy_low"], importance["p_value"]) == (60.0, 59.0, 0.5)
    assert (rows[3]["lambda"], rows[3]["heads_asked"], rows[3]["learned"]) == (0.1, None, 1)


def test_the_record_says_what_made_it_and_each_run(written):
    folder, said = written
    content = json.loads((folder / "compare.json").read_text())
    assert {"command", "commit", "device", "versions", "date"} <= set(content)
    assert content["summary"] == said
    assert content["ranks"] == {"0": {"importance": 1.0}, "1": {"importance": 1.0}}
    assert content["runs"][POINTS[0].run]["command"] == f"python fit.py --name {POINTS[0].run}"
    assert content["failed"] == ["random at 5"]
    assert content["leads"] == []  # lambda decides how many heads these learned gates keep
    group = content["groups"][-1]
    assert (group["method"], group["seeds"], group["value"], group["lowest"], group["highest"]) == (
        "importance",
        2,
        55.0,
        50.0,
        60.0,
    )
    assert group["reference"] == "base-continued"
    assert group["difference"] == pytest.approx(55.0 - 97.5)
    assert group["difference_low"] < group["difference"] < group["difference_high"]
    text = (folder / "compare.md").read_text()
    assert [sentence for sentence in said if f"- {sentence}" not in text] == []
    assert "- no run: random at 5" in text
    assert "| importance | 5 | 2 | 50.00 to 60.00 | 55.00 |" in text


def test_learned_gates_are_paired_with_every_other_method_at_as_many_heads_and_as_much_training():
    planted = [
        ("l0-target", 100),
        ("subset", 110),
        ("importance", 120),
        ("random", 60),
    ]
    trained = [point(method, 5, right(range(n)), epochs=1) for method, n in planted]
    others = [point("importance", 5, right(range(50))), point("importance", 8, right(range(150)), epochs=1)]
    made = compared([*trained, *others, point("l0", 5, right(range(9)), epochs=1, lam=0.1)])
    rows = leads(made)
    found = [(row["method"], row["against"], row["epochs"], row["heads"], row["difference"]) for row in rows]
    assert found == [
        ("subset", "importance", 1, 5, -5.0),
        ("subset", "l0-target", 1, 5, 5.0),
        ("subset", "random", 1, 5, 25.0),
        ("l0-target", "importance", 1, 5, -10.0),
        ("l0-target", "subset", 1, 5, -5.0),
        ("l0-target", "random", 1, 5, 20.0),
    ]
    assert all(
        row["difference_low"] < row["difference"] < row["difference_high"] and 0 < row["p_value"] < 0.05
        for row in rows
    )


def test_the_page_of_the_base_takes_words_points_and_figure(written):
    folder, said = written
    base = RunFolder(folder.path.parent / "base")
    (found,) = comparisons_of(base)
    assert (found["name"], found["summary"]) == ("compare-planted", said)
    assert len(found["points"]) == 2 + 3
    head, _, drawn = found["figure"].partition(",")
    assert head == "data:image/svg+xml;base64"
    assert base64.b64decode(drawn) == (folder / "compare.svg").read_bytes()
    base.write_text("config.yaml", "run_hash: another12345\n")
    assert comparisons_of(base) == []


def test_a_broken_comparison_costs_the_page_nothing(written):
    folder, _ = written
    (folder / "compare.json").write_text("{")
    assert comparisons_of(RunFolder(folder.path.parent / "base")) == []


def test_the_terminal_shows_a_table_for_each_amount_of_training(written, capsys):
    show_compared(compared(POINTS), ["A sentence."], metrics=[ACCURACY], title="planted")
    out = capsys.readouterr().out
    assert "planted, without training" in out
    assert "planted, with 1 epoch of training" in out
    assert out.startswith("A sentence.")
