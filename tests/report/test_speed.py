"""The speed of a pruned model beside the unpruned one. No timing is a test."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgates.commands import export
from headgates.records.folder import RunFolder
from headgates.report.speed import side_by_side
from headgates.report.speed.side_by_side import runtime_speeds
from tests.worlds.runs import assert_one_line, well

EXAMPLE = Path(__file__).parents[2] / "examples/toy_run"
SPEED = {
    "measured": {"median": 1.25, "lowest": 1.1, "highest": 1.5},
    "milliseconds": [8.0, 10.0],
    "tokens": 1.0,
}


@pytest.fixture
def runs(tmp_path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "runs"))


@pytest.fixture
def timed(monkeypatch) -> list[tuple]:
    """What was given to the timer of plans, which takes no time here."""
    calls: list[tuple] = []
    monkeypatch.setattr(side_by_side, "compared", lambda *given: (calls.append(given), ([], SPEED))[1])
    monkeypatch.setattr(side_by_side, "runtimes_of", lambda model: ["torch", "int8"])
    return calls


def test_the_removed_model_is_timed_beside_its_base_by_every_runtime(runs, called, timed):
    gated = next(runs.glob("*-l0-*"))
    asked = ("--sentences", 7, "--batch", 3, "--beam", 2)
    out = well(called(export)(gated, "--report", "speed", *asked))
    found = RunFolder(gated).read_json("speed/side_by_side.json")
    whole, pruned = found["parameters"]
    assert pruned < whole
    assert all(f"{size:,}" in out for size in (whole, pruned))
    assert out.count("10.00 ms a line") == out.count("1.25 (1.10 to 1.50)") == 2
    assert all(name in out for name in ("own search", "int8", "(batch 3, beam 2, "))
    assert [*found["speeds"]] == ["torch", "int8"]
    assert len(timed) == 2
    for this, unpruned, _, _, text in timed:
        sizes = [sum(each.numel() for each in run.model.parameters()) for run in (unpruned, this)]
        assert sizes == [whole, pruned]
        assert (len(text.ids), text.batch, text.beam) == (7, 3, 2)
    assert {"command", "commit", "device", "versions"} <= found.keys()


def test_a_base_has_nothing_to_be_compared_with(runs, called):
    code, _, error = called(export)(runs / "toy-en-de-none-s1", "--report", "speed")
    assert code == 1
    assert_one_line(error, "is a base", "give a run that prune made of one")


def test_labels_are_timed_by_torch_as_whole_over_pruned(monkeypatch):
    def alternate(blocks, **how):
        for block in blocks.values():
            block()
        return {"this": [1.0, 2.0], "whole": [2.0, 8.0]}

    labelled = []
    task = SimpleNamespace(predict=lambda predictor, lines: labelled.append(predictor))
    this, whole = (SimpleNamespace(task=task, predictor=name) for name in ("pruned", "unpruned"))
    monkeypatch.setattr(side_by_side, "alternate", alternate)
    found = runtime_speeds(this, whole, ["a"] * 5, batch=32, beam=1, threads=1)
    assert found["torch"]["measured"]["values"] == [2.0, 4.0]
    assert found["torch"]["milliseconds"] == [300.0, 1000.0]
    assert labelled == ["pruned", "unpruned"]
