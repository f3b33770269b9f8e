"""One run through many numbers of heads: each from the smaller model before, found again, asked again, and
its knee."""

import json
import shutil

import pytest
import torch

from headgates.configs.cli import ConfigError, read
from headgates.configs.schema import FitConfig
from headgates.gates import heads_left
from headgates.lightning_modules.module import StageModule
from headgates.models.checkpoint import load_model
from headgates.pruning.protocol import make_runs
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from headgates.records.table import read_table

pytestmark = pytest.mark.usefixtures("as_if_learned")
COUNTS = (9, 4, 0)
FLAGS = [
    "--curve",
    "9,4,0",
    "--max-drop",
    "100",
]


def fit(flags: list[str]) -> RunFolder:
    return make_runs(read(FitConfig, flags))


@pytest.fixture(scope="module")
def curve(unpriced, finished):
    """A finished curve on the base of `finished`, in a folder of runs of its own."""
    return fit([*unpriced, *FLAGS, *on_base_of(finished, finished.path.parent), "--name", "tiny-curve"])


def on_base_of(run: RunFolder, runs) -> list[str]:
    """The flags of a learned subset on the base of `run`, as it lies in the folder `runs`."""
    return [
        "--gate",
        "subset",
        "--runs",
        str(runs),
        "--base",
        str(runs / run.config()["base"].rpartition("/")[2]),
    ]


def test_each_count_has_a_smaller_model_whose_heads_are_among_those_before(curve):
    before = None
    rows = read_table(curve, "curve.csv")
    assert [row["heads_open"] for row in rows] == list(COUNTS)
    for count, row in zip(COUNTS, rows, strict=True):
        model = load_model(curve / f"{count}-heads.pt")
        left = heads_left(model)
        assert (left.count(), left.heads_total) == (count, 21)
        assert row["parameters"] == sum(parameter.numel() for parameter in model.parameters())
        if before is not None:
            assert bool((before.flat() | ~left.flat()).all())
        before = left
    assert [row["parameters"] for row in rows] == sorted((row["parameters"] for row in rows), reverse=True)
    assert not list(curve.path.glob("*-last.pt"))


def test_the_system_of_the_run_is_the_knee_and_translates_as_the_test_row_says(curve, corpus):
    found = curve.read_json("knee.json")
    assert found["heads"] == 0  # all points lose less than 100
    assert found["test"].keys() == {"bleu", "chrf"}
    row = {row.system: row for row in curve.rows()}["subset-0"]
    assert (row.heads_open, curve.own_system()) == (0, "subset-0")
    source = open_source(curve.path)
    lines = (curve / "hypotheses/subset-0.txt").read_text().split("\n")[:-1]
    assert source.translator.translate(list(corpus.test.sources)[: len(lines)]) == lines
    assert found["test"]["bleu"]["mean"] == pytest.approx(-row.main.difference)


def test_a_smaller_drop_is_found_without_training(curve, unpriced, monkeypatch, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(curve.path.parent, runs)
    monkeypatch.setattr(StageModule, "training_step", None)  # whatever trains fails
    flags = [*unpriced, *FLAGS, *on_base_of(curve, runs), "--name", "tiny-curve"]
    flags[flags.index("--max-drop") + 1] = "0.0"
    drops = {row["heads_open"]: (row["drop"], row["drop_bound"]) for row in read_table(curve, "curve.csv")}
    fine = [heads for heads, (mean, bound) in drops.items() if mean <= 0 and bound <= 0.7]
    again = fit(flags)
    assert again.path == (runs / "tiny-curve")
    assert again.read_json("knee.json")["heads"] == min(fine, default=None)
    assert torch.equal(
        load_model(again / "4-heads.pt").state_dict()["decoder.norm.weight"],
        load_model(curve / "4-heads.pt").state_dict()["decoder.norm.weight"],
    )


def test_a_curve_stopped_between_counts_goes_on_with_the_next(curve, unpriced, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(curve.path.parent, runs)
    stopped = RunFolder(runs / "tiny-curve")
    for name in (
        "0-heads.pt",
        "0-stage.json",
        "result.json",
        "knee.json",
        "curve.csv",
        "hypotheses/valid-0.txt",
    ):
        (stopped / name).unlink()
    again = fit([*unpriced, *FLAGS, *on_base_of(curve, runs), "--name", "tiny-curve", "--resume"])
    assert json.loads((again / "knee.json").read_text()) == json.loads((curve / "knee.json").read_text())
    assert (again / "curve.csv").read_text() == (curve / "curve.csv").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--curve", "4,9"], "from many to few"),
        (["--curve", "9,9"], "each once"),
        (["--curve", "9,4", "--heads", "3"], "leave --heads"),
        (["--max-drop", "1", "--gate", "none"], "trains gates"),
        (["--resume", "--fresh"], "give one of them"),
        (["--max-drop", "1", "--systems", "base,importance"], "leave importance out"),
    ],
)
def test_what_a_curve_cannot_be_is_refused(flags, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        read(FitConfig, flags)


def test_a_count_that_the_model_does_not_have_is_refused_before_training(unpriced, finished):
    flags = [
        *unpriced,
        "--curve",
        "21,4",
        *on_base_of(finished, finished.path.parent),
        "--name",
        "too-many",
    ]
    with pytest.raises(ValueError, match="fewer heads than the 21"):
        fit(flags)
    assert not (finished.path.parent / "too-many").exists()
