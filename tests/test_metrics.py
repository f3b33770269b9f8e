"""--metrics as its user meets it: where BLEU and chrF are, and no run lost to a function that fails."""

import json
from statistics import fmean

import pytest

from headgates.commands import analyze, prune
from headgates.lab.wandb_tables import comparison, run_summary
from headgates.lightning_modules import stage as training
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder
from headgates.records.table import read_table
from tests.worlds import own_metrics
from tests.worlds.made_runs import BASE, opened
from tests.worlds.own_metrics import points
from tests.worlds.runs import assert_one_line, well

pytestmark = pytest.mark.usefixtures("as_if_learned")
HERE = "tests.worlds.own_metrics"
FEW = ["--threads", "1", "--by", "random"]
NAME = f"{HERE}.shared_words"
WORDS = ["--metrics", f"{HERE}:shared_words"]


@pytest.fixture
def prune_here(called):
    """prune_here(words...) -> (exit code, stdout, stderr)."""
    return called(prune)


def means(run, systems):
    """Each system's score by a slow loop over the lines that its run keeps."""
    test = opened(run).corpus.test
    return {
        system: fmean(map(points, test.sources, run.outputs(system), test.targets)) for system in systems
    }


def test_a_metric_is_missing_where_bleu_and_chrf_are(tiny, prune_here, monkeypatch):
    well(prune_here(tiny / BASE, "--heads", "9,4", *FEW))  # without it: a finished run gets it later
    monkeypatch.setattr(training, "run_stage", None)
    monkeypatch.setattr(Translator, "translate", None)
    out = well(prune_here(tiny / BASE, "--heads", "9,4", *WORDS, *FEW))
    assert f"mean over the lines of {HERE}:shared_words" in out
    assert "shared_words difference" in out
    (run,) = map(RunFolder, tiny.glob("*-random-9-s1"))
    expected = means(run, ("base", "pruned"))
    for row in run.rows():
        assert [*row.measures] == ["bleu", "chrf", NAME]
        assert row.measures[NAME].value == pytest.approx(expected[row.system])
    own = run.row_of("pruned").measures[NAME]
    difference = expected["pruned"] - expected["base"]
    assert own.difference == pytest.approx(difference)
    assert own.difference_ci95[0] <= difference <= own.difference_ci95[1]
    assert own.p_value is not None
    (folder,) = map(RunFolder, tiny.glob("compare-*"))
    rows = {row["run"]: row for row in read_table(folder, "compare.csv")}
    assert rows[run.path.name][NAME] == pytest.approx(expected["pruned"])
    assert rows[run.path.name][f"{NAME}_difference"] == pytest.approx(difference)
    groups = json.loads((folder / "compare.json").read_text())["groups"]  # which the page shows
    assert {f"{NAME}_difference_low", f"{NAME}_difference_high"} <= {*groups[-1]}
    assert f"`mean over the lines of {HERE}:shared_words`" in (folder / "compare.md").read_text()
    assert run_summary(run)[f"systems/base/{NAME}"] == pytest.approx(expected["base"])
    assert run_summary(run)[NAME] == pytest.approx(expected["pruned"])
    assert f"{NAME}_signature" in comparison(run)[0]


def test_a_new_run_or_another_test_set_goes_without_the_metric(tiny, prune_here, tmp_path):
    lines = opened(RunFolder(tiny / BASE)).lines("valid", 13)
    for side, text in zip(("en", "de"), lines, strict=True):
        (tmp_path / f"other.{side}").write_text("".join(line + "\n" for line in text))
    also = f"{tmp_path}/other.en:{tmp_path}/other.de"
    out = well(prune_here(tiny / BASE, "--heads", "9", "--also", also, *WORDS, *FEW))
    assert out.count(f"mean over the lines of {HERE}:shared_words") == 2
    (run,) = map(RunFolder, tiny.glob("*-random-9-s1"))
    expected = means(run, ("base", "pruned"))
    assert {row.system: row.measures[NAME].value for row in run.rows()} == pytest.approx(expected)


def test_each_head_alone_is_not_measured_by_it(tiny, called):
    well(called(analyze)(tiny / BASE, "--ablate", "one", "--test-sentences", "7", *WORDS))
    rows = read_table(RunFolder(tiny / BASE), "ablation/one.csv")
    assert len(rows) == 16
    assert all(isinstance(row[f"{NAME}_difference"], float) for row in rows)


def test_a_function_that_fails_costs_a_run(tiny, prune_here, monkeypatch):
    before = {*tiny.iterdir()}
    code, _, error = prune_here(tiny / BASE, "--heads", "9", "--metrics", f"{HERE}:raises", *FEW)
    assert code
    assert {*tiny.iterdir()} == before
    assert_one_line(error, "--metrics", "raised ZeroDivisionError")
    words = [tiny / BASE, "--heads", "9", "--epochs", "1", "--metrics", f"{HERE}:of_short_texts", *FEW]
    code, _, error = prune_here(*words)  # it fails once the whole text is scored
    assert code
    assert "raised RuntimeError: out of memory" in error.splitlines()[-1]
    monkeypatch.setattr(own_metrics, "of_short_texts", own_metrics.shared_words)
    stages, run_stage = [], training.run_stage
    seen = lambda name, *rest, **more: stages.append(name) or run_stage(name, *rest, **more)  # noqa: E731
    monkeypatch.setattr(training, "run_stage", seen)
    well(prune_here(*words, "--resume"))
    assert stages == ["training"]  # what was trained before the error is found
