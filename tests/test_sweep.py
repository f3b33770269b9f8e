"""sweep.py as its user meets it: a grid of two runs on one base, the same command again, what is refused."""

import csv
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from headgates.commands import sweep
from headgates.lightning_modules.module import StageModule
from headgates.pruning import at_once, jobs
from headgates.records.folder import RunFolder
from tests.worlds.ranks import Command

ROOT = Path(__file__).parents[1]


@pytest.fixture
def sweep_here(called):
    """sweep_here(words...) -> (exit code, stdout, stderr)."""
    return called(sweep)


@pytest.fixture
def write(tmp_path, tiny_flags):
    """write(name=values) -> the sweep file of a tiny run with these values."""

    def write(**values):
        parameters = {
            name.removeprefix("--"): {"value": value}
            for name, value in zip(*[iter(tiny_flags)] * 2, strict=True)
        }
        parameters |= {name: {"values": each} for name, each in values.items()}
        content = {"program": "fit.py", "method": "grid", "parameters": parameters}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tmp_path / "own.yaml"

    return write


class ForkedJob:
    """A job of this machine that imports nothing anew; tests/pruning/test_grid.py starts real ones."""

    def __init__(self, command, log, environment):
        assert command[1:3] == ["-m", "headgates"]
        script = ROOT / f"{command[3]}.py"
        self.command = Command([str(script), *command[4:]], log.with_suffix(""), **environment)
        self.log, self.begin = log.with_suffix("") / "0.err", 0

    def poll(self):
        return None if self.command.running() else self.command.processes[0].exitcode

    def send(self, signum):
        self.command.kill()


def test_trials_at_once_share_one_base_are_found_again_and_one_that_fails_is_named(
    sweep_here, write, tmp_path, monkeypatch
):
    monkeypatch.setattr(at_once, "LocalJob", ForkedJob)
    runs = tmp_path / "runs"
    file = write(gate=["random"], rivals=["importance"], heads=[9, 99])
    code, out, _ = sweep_here(file, "--runs", runs, "--jobs", 2, "--threads", 1)
    assert code == 1
    assert "failed: heads 99: --heads: cannot keep 99 of" in out
    assert len(list(runs.glob("*-none-s1/best.pt"))) == 1, "one base for both"
    with (runs / "sweep-own/sweep.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert {(row["model"], row["heads"], row["heads_open"]) for row in rows} == {
        ("random", "9", "9"),
        ("importance", "9", "9"),
    }
    for row in rows:
        assert float(row["bleu"]) == RunFolder(runs / row["run"]).row_of("pruned").main.value
    made = {path: path.stat().st_mtime_ns for path in runs.rglob("best.pt")}
    code, out, _ = sweep_here(file, "--runs", runs, "--threads", 1)  # in this process
    assert "failed: heads 99: --heads: cannot keep 99 of" in out
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("best.pt")} == made


def test_a_sweep_that_was_interrupted_goes_on_where_it_stopped(sweep_here, write, tmp_path, monkeypatch):
    file = write(gate=["none"], set=["checkpoint_steps=1"])
    steps, step = [], StageModule.training_step

    def interrupted(module, *batch):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(module, *batch)

    monkeypatch.setattr(StageModule, "training_step", interrupted)
    words = file, "--runs", tmp_path / "runs", "--threads", 1
    with suppress(KeyboardInterrupt):
        sweep_here(*words)
    code, out, error = sweep_here(*words)
    assert code == 0, out + error
    (command,) = (tmp_path / "runs").rglob("command.txt")
    assert "\nresumed\n" in command.read_text()


def test_trials_whose_runs_would_have_one_name_are_two_runs(sweep_here, write, tmp_path):
    file = write(gate=["none"], **{"train.lr": [0.001, 0.003]})
    code, out, error = sweep_here(file, "--runs", tmp_path / "runs", "--threads", 1)
    assert code == 0, out + error
    assert len(list((tmp_path / "runs").glob("*-none-*/best.pt"))) == 2


@pytest.mark.parametrize(
    ("values", "words", "said"),
    [
        ({"precision": ["auto"], "seed": [1, 2]}, ["--slurm", "cluster=debug"], "--slurm needs a precision"),
        ({"lamda": [1]}, [], "did you mean --lambda"),
        ({"name": ["same"]}, [], "--name and --fresh"),
    ],
)
def test_what_no_trial_can_have_is_refused_before_anything_starts(
    sweep_here, write, tmp_path, monkeypatch, values, words, said
):
    monkeypatch.setattr(jobs.LocalJob, "__init__", lambda *_: pytest.fail("started a process"))
    code, _, error = sweep_here(write(**values), "--runs", tmp_path / "runs", *words)
    assert code == 1
    assert said in error
