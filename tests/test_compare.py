"""compare.py as its user meets it: two counts and an epoch on a tiny base, the same command again, what is
refused and how."""

import csv
import json
import subprocess

import pytest
import sacrebleu

from headgates.commands import compare
from headgates.records.folder import RunFolder
from headgates.records.source import open_source

pytestmark = pytest.mark.usefixtures("as_if_learned")
POINTS = 2 + 3  # without training: importance at two counts; with an epoch: the same, and l0


@pytest.fixture
def compare_here(called):
    """compare_here(words...) -> (exit code, stdout, stderr)."""
    return called(compare)


@pytest.fixture
def nothing_starts(monkeypatch):
    start = subprocess.Popen

    def popen(words, *rest, **options):
        if words[0] != "git":  # what the record of the table asks for the commit
            raise AssertionError(f"started {words}")
        return start(words, *rest, **options)

    monkeypatch.setattr("headgates.pruning.jobs.subprocess.Popen", popen)


def untimed(group: dict[str, object]) -> dict[str, object]:
    """What a point that is made again has in common with what it was: all but seconds."""
    return {name: value for name, value in group.items() if not name.endswith("seconds")}


def test_a_comparison_is_made_once_and_goes_on_where_it_was(compare_here, base, runs, monkeypatch, tmp_path):
    other = open_source(base.path).lines("valid", 9)
    words = (
        base.path,
        "--runs",
        runs,
        "--methods",
        "l0,importance",
        "--lambdas",
        2.0,
        "--heads",
        "4,2",
        "--finetune",
        "0,1",
        "--jobs",
        2,
    )
    code, out, error = compare_here(*words, "--threads", 1)
    assert (code, error) == (0, ""), out + error
    folder = RunFolder(runs / "compare-toy-en-de-none-s1")
    assert f"{POINTS} points at 4, 2 of 6 heads, {POINTS} of them to make" in out
    records = json.loads((folder / "points.json").read_text())["points"]
    assert {record["status"] for record in records} == {"done"}
    with (folder / "compare.csv").open(newline="") as table:
        rows = {(row["method"], row["epochs"], row["heads_asked"]): row for row in csv.DictReader(table)}
    told = {("importance", epochs, heads) for epochs in "01" for heads in "42"}
    assert set(rows) == told | {("l0", "1", ""), ("base", "0", "6"), ("base-continued", "1", "6")}
    for key, row in rows.items():
        made = {each.system: each for each in RunFolder(runs / row["run"]).rows()}[row["system"]]
        assert (float(row["bleu"]), int(row["heads_open"])) == (made.main.value, made.heads_open)
        assert row["p_value"], "every number has its test"
        assert key not in told or int(row["heads_open"]) == int(row["heads_asked"])
    assert (
        len({json.dumps(RunFolder(runs / row["run"]).rows()[0].evaluation) for row in rows.values()}) == 1
    ), "the same test lines"
    for name in ("compare.png", "compare.svg", "compare.md"):
        assert (folder / name).stat().st_size > 1000
    content = json.loads((folder / "compare.json").read_text())
    assert "At 4 heads without training importance" in content["summary"][0]
    assert content["summary"][0] in out
    assert str(runs) not in (folder / "compare.json").read_text(), "no path of the machine"
    page = (base / "report.html").read_text()
    assert "compare-toy-en-de-none-s1: methods" not in page
    assert content["title"] in page

    (trained,) = (row["run"] for key, row in rows.items() if key == ("importance", "1", "2"))
    started = []
    start = subprocess.Popen

    def popen(words, *rest, **options):
        started.append(words)
        return start(words, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr("headgates.pruning.jobs.subprocess.Popen", popen)
        result = RunFolder(runs / trained).read_json("result.json")
        RunFolder(runs / trained).write_json(
            "result.json", result | {"finished": False}
        )  # stopped before its end
        code, out, error = compare_here(*words)
        assert (code, error) == (0, "")
        assert f"{POINTS} points at 4, 2 of 6 heads, 1 of them to make" in out
    assert ["importance:trained" in word for words in started for word in words if "--systems" in word] == [
        True
    ]
    monkeypatch.setattr(
        "headgates.pruning.comparison.Comparison.make_here", lambda *_: pytest.fail("made again")
    )
    monkeypatch.setattr(
        "headgates.pruning.jobs.subprocess.Popen",
        lambda words, *_, **__: pytest.fail(f"started {words}"),
    )
    monkeypatch.setattr("headgates.records.provenance.commit", lambda: "0123abc")
    for side, lines in zip(("en", "de"), other, strict=True):
        (tmp_path / f"other.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    also = f"{tmp_path / 'other.en'}:{tmp_path / 'other.de'}"
    code, out, error = compare_here(*words, "--also", also)
    assert (code, error) == (0, "")
    assert "0 of them to make" in out
    again = json.loads((folder / "compare.json").read_text())["groups"]
    assert [*map(untimed, again)] == [*map(untimed, content["groups"])]
    (elsewhere,) = folder.path.glob("*-other/compare.csv")
    with elsewhere.open(newline="") as table:
        found = {(row["method"], row["epochs"], row["heads_asked"]): row for row in csv.DictReader(table)}
    assert found.keys() == rows.keys()
    source = open_source(runs / trained, "importance:trained")
    wanted = sacrebleu.corpus_bleu(source.translator.translate(other[0]), [other[1]])
    measured = found["importance", "1", "2"]
    assert float(measured["bleu"]) == pytest.approx(wanted.score)
    assert float(measured["length"]) == pytest.approx(wanted.sys_len / wanted.ref_len)
    assert float(measured["training_seconds"]) > 0


def test_a_point_that_fails_stops_no_other(compare_here, base, runs, monkeypatch):
    from headgates.pruning.comparison import Comparison

    make = Comparison.make_here

    def make_here(self, point):
        if point.asked == 4:
            raise ValueError("the disk is full")
        make(self, point)

    monkeypatch.setattr(Comparison, "make_here", make_here)
    words = (
        base.path,
        "--runs",
        runs,
        "--methods",
        "importance",
        "--heads",
        "4,2",
        "--finetune",
        0,
        "--name",
        "own",
    )
    code, out, error = compare_here(*words)
    assert (code, error) == (1, "")
    assert "1 of 2 points have no run; the same command tries them again" in out
    assert (
        "- no run: method importance, heads 4, epochs 0, seed 1: the disk is full"
        in (runs / "compare-own/compare.md").read_text()
    )
    monkeypatch.setattr(Comparison, "make_here", make)
    assert compare_here(*words)[0] == 0
    assert "no run" not in (runs / "compare-own/compare.md").read_text()


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            ["--heads", "9,2"],
            "--heads: cannot keep 9 of 6 heads of enc-self, dec-self, cross; give a smaller number",
        ),
        (["--kinds", "cross", "--heads", 3], "cannot keep 3 of 2 heads of cross"),
    ],
)
def test_what_the_base_cannot_have_is_one_line_before_anything_starts(
    compare_here, base, runs, nothing_starts, words, part
):
    code, out, error = compare_here(base.path, "--runs", runs, "--methods", "importance", *words)
    assert (code, out) == (1, "")
    (line,) = error.strip().splitlines()
    assert line.startswith("compare.py: error: ")
    assert part in line
    assert not list(runs.glob("compare-*"))
