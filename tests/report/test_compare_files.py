"""The files of a comparison: a row a run, what made them, and what the report page of the base takes from
them."""

import base64
import json
from dataclasses import replace

import pytest

from headgates.analysis.metrics import ACCURACY
from headgates.configs.recipe import Lambda, Speed
from headgates.records.folder import RunFolder
from headgates.records.table import read_table
from headgates.report.compare_files import (
    group_tables,
    leads,
    print_compared,
    sentences_of,
    write_compared,
)
from headgates.report.compared import without_scores
from headgates.report.comparisons import comparisons_of
from tests.worlds.compared import compared, made, right

POINTS = [
    made("importance", 5, right(range(40))),
    *(
        made("importance", 5, right(range(n)), epochs=1, seed=seed, loss=1.25)
        for seed, n in ((1, 100), (2, 120))
    ),
    made("l0", 8, right(range(125)), epochs=1, budget=Lambda(0.1)),
]


@pytest.fixture
def written(tmp_path):
    """(folder, sentences) of a comparison beside a base."""
    base, folder = RunFolder(tmp_path / "base"), RunFolder(tmp_path / "compare-planted")
    base.write_text("config.yaml", "run_hash: abc123abc123\n")
    rows = [replace(row, run=RunFolder(tmp_path / row.run.path.name)) for row in POINTS]
    for row in rows:
        row.run.write_json("result.json", {"command": f"headgates prune {row.run.path.name}", "seed": 1})
    found = compared(rows, continued=range(195))
    about = {"base": "base", "base_hash": "abc123abc123"}
    write_compared(
        found,
        folder,
        metrics=[ACCURACY],
        title="planted",
        about=about,
        failed=["random at 5"],
        report=lambda text: None,
    )
    return folder, sentences_of(found, ACCURACY)


def test_the_table_has_a_row_for_every_run_the_bases_first(written):
    folder, _ = written
    rows = read_table(folder, "compare.csv")
    assert [row["run"] for row in rows[2:]] == [POINTS[i].run.path.name for i in (0, 3, 1, 2)]
    assert [row["method"] for row in rows[:2]] == ["unpruned", "unpruned, trained as long"]
    importance = rows[-1]
    named = ("asked", "heads", "seed", "loss", "accuracy", "cross")
    assert [importance[name] for name in named] == ["5 heads", 5, 2, 1.25, 60.0, 5]
    assert importance["accuracy_low"] < 60 < importance["accuracy_high"]
    assert importance["difference"] == pytest.approx(60 - 97.5)
    assert (rows[3]["asked"], rows[3]["learned"]) == ("λ 0.1", 1)


def test_the_record_says_what_made_it_and_each_run(written):
    folder, said = written
    content = json.loads((folder / "compare.json").read_text())
    assert {"command", "commit", "device", "versions", "date"} <= set(content)
    assert content["summary"] == said
    assert content["ranks"] == {"0": {"importance": 1.0}, "1": {"importance": 1.0}}
    name = POINTS[0].run.path.name
    assert content["runs"][name]["command"] == f"headgates prune {name}"
    assert content["failed"] == ["random at 5"]
    assert content["leads"] == []  # lambda decides how many heads these learned gates keep
    group = content["groups"][-1]
    assert (group["method"], group["seeds"], group["accuracy"], group["lowest"], group["highest"]) == (
        "importance",
        2,
        55.0,
        50.0,
        60.0,
    )
    assert group["reference"] == "unpruned, trained as long"
    assert group["difference"] == pytest.approx(55.0 - 97.5)
    assert group["difference_low"] < group["difference"] < group["difference_high"]
    text = (folder / "compare.md").read_text()
    assert [sentence for sentence in said if f"- {sentence}" not in text] == []
    assert "- no run: random at 5" in text
    assert "| importance | 5 heads | 5 | 2 | 50.00 to 60.00 | 55.00 |" in text


def test_learned_gates_are_paired_with_every_other_method_at_as_many_heads_and_as_much_training():
    planted = [
        ("l0", 100),
        ("subset", 110),
        ("importance", 120),
        ("random", 60),
    ]
    trained = [made(method, 5, right(range(n)), epochs=1) for method, n in planted]
    others = [made("importance", 5, right(range(50))), made("importance", 8, right(range(150)), epochs=1)]
    of_all = compared([*trained, *others, made("l0", 5, right(range(9)), epochs=1, budget=Lambda(0.1))])
    rows = leads(of_all)
    found = [(row["method"], row["against"], row["epochs"], row["heads"], row["difference"]) for row in rows]
    assert found == [
        ("learned subset", "importance", 1, 5, -5.0),
        ("learned subset", "learned gates", 1, 5, 5.0),
        ("learned subset", "random", 1, 5, 25.0),
        ("learned gates", "importance", 1, 5, -10.0),
        ("learned gates", "learned subset", 1, 5, -5.0),
        ("learned gates", "random", 1, 5, 20.0),
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


def test_the_terminal_shows_a_table_for_each_amount_of_training(capsys):
    print_compared(compared(POINTS), metrics=[ACCURACY], title="planted")
    out = capsys.readouterr().out
    assert "planted: test set, without training" in out
    assert "planted: test set, with 1 epoch of training" in out
    assert "95% of seeds" not in out


def test_a_column_in_which_no_row_has_anything_is_left_out():
    (head, *rows) = group_tables(compared([POINTS[0]]), [ACCURACY])[0]
    assert head == [
        "method",
        "asked",
        "heads",
        "seeds",
        "accuracy",
        "95%",
        "difference",
        "95%",
        "p (Holm)",
        "valid. loss",
    ]
    assert all(len(row) == len(head) for row in rows)
    assert rows[0][head.index("difference")] == "reference"


def test_speeds_are_told_by_every_runtime_that_all_models_were_measured_by():
    by = {
        "measured": {"median": 2.0},
        "milliseconds": [4.0, 8.0],
        "accuracy": 40.0,
        "unpruned": {"accuracy": 95.0},
    }
    half = by | {"milliseconds": [2.0, 4.0], "unpruned": {"accuracy": 94.0}}
    speed = {"budget": "speedup", "predicted": 2.1, "measured": {"median": 1.9}}
    speed |= {"tokens": 1.0, "timed": "int8, batch 1"}
    rows = [made("plan", heads, right(range(80)), budget=Speed(10 / heads, "int8")) for heads in (5, 2)]
    rows[0].result.speed = speed | {"runtimes": {"ct2": by, "int8": half}}
    rows[1].result.speed = speed | {"runtimes": {"torch": by, "ct2": by, "int8": half}}
    found = compared(rows)
    (head, _, row, _) = group_tables(found, [ACCURACY])[0]
    cells = dict(zip(head, row, strict=True))
    assert (cells["asked"], cells["predicted (x)"], cells["measured (x)"]) == (
        "2 times the speed",
        "2.10",
        "1.90",
    )
    assert (cells["int8 (x)"], cells["accuracy, int8"]) == ("2.00", "40.00")
    assert cells["by"] == "int8, batch 1", "a speed without its batch is none"
    assert "own search (x)" not in cells
    said = "int8 the unpruned model has 94.00 accuracy in place of 95.00 in fp32"
    assert said in sentences_of(found, ACCURACY)[-1]
    for each in rows:  # on another text int8 translated nothing
        each.result.speed = without_scores(each.result.speed)
    elsewhere = compared(rows)
    (head, _, row, _) = group_tables(elsewhere, [ACCURACY])[0]
    assert "int8 (x)" in head
    assert not any(column.startswith("accuracy,") for column in head)
    assert not any("in place of" in sentence for sentence in sentences_of(elsewhere, ACCURACY))
