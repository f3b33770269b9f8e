"""sweep.py as its user meets it: a grid of two runs on one base, the same command again, what is refused."""

import csv
import json
from pathlib import Path

import pytest
import yaml

from headgates.commands import sweep
from headgates.pruning import jobs
from headgates.records.folder import RunFolder


@pytest.fixture
def sweep_here(called):
    """sweep_here(words...) -> (exit code, stdout, stderr)."""
    return called(sweep)


@pytest.fixture
def nothing_starts(monkeypatch):
    monkeypatch.setattr(jobs.LocalJob, "__init__", lambda *_: pytest.fail("started a process"))


@pytest.fixture
def write(tmp_path):
    def write(**parameters):
        content = {"program": "fit.py", "method": "grid", "parameters": parameters}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tmp_path / "own.yaml"

    return write


def test_two_runs_share_one_base_and_are_made_once(sweep_here, write, tiny_flags, tmp_path, monkeypatch):
    flags = {
        name.removeprefix("--"): {"value": value} for name, value in zip(*[iter(tiny_flags)] * 2, strict=True)
    }
    flags |= {"lambda": {"values": [0.1, 3.0]}, "systems": {"value": "base,l0"}, "train.epochs": {"value": 1}}
    runs = tmp_path / "runs"
    words = (write(**flags), "--runs", runs, "--jobs", 2, "--threads", 1)
    code, out, error = sweep_here(*words)
    assert (code, error) == (0, ""), out + error
    points = json.loads((runs / "sweep-own/points.json").read_text())["points"]
    names = [point["run"] for point in points]
    assert sorted(path.name for path in runs.glob("*-*")) == sorted(
        ["sweep-own", *names, *(path.name for path in runs.glob("*-none-s1"))]
    ), "one base for both"
    logs = [(runs / f"sweep-own/logs/{point['run_hash']}.log").read_text() for point in points]
    assert sorted("base: epoch 1" in log for log in logs) == [False, True]
    for point in points:
        run = RunFolder(runs / point["run"])
        assert run.run_hash() == point["run_hash"]
        assert run.config()["lambda"] == point["settings"]["lambda"]
    assert (runs / "sweep-own/pareto.svg").stat().st_size > 1000

    monkeypatch.setattr(jobs.LocalJob, "__init__", lambda *_: pytest.fail("started a process"))
    code, out, error = sweep_here(*words, "--name", "other")
    assert (code, error) == (0, "")
    assert "lambda 0.1: done before" in out
    code, out, error = sweep_here("pareto", runs / names[0], "--siblings", "--out", tmp_path / "drawn")
    assert (code, error) == (0, "")
    with (tmp_path / "drawn/pareto.csv").open(newline="") as table:
        assert {row["run"] for row in csv.DictReader(table)} >= set(names), "the sibling too"


def test_slurm_needs_a_precision_that_is_the_same_on_all_machines(
    sweep_here, write, tmp_path, nothing_starts
):
    file = write(
        config={"value": str(Path(__file__).parents[1] / "configs/toy_tiny.yaml")},
        precision={"value": "auto"},
    )
    code, _, error = sweep_here(file, "--runs", tmp_path / "runs", "--slurm", "cluster=debug")
    assert code == 1
    assert "--slurm needs a precision" in error
