"""The runner of many runs, with a fake fit.py: what is started, what is kept, what is left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headgates.configs.compare import CompareConfig
from headgates.configs.schema import FinetuneConfig, FitConfig, StageConfig
from headgates.configs.sweep import SweepConfig
from headgates.pruning import grid, jobs
from headgates.pruning.grid import GridPoint, run_grid
from headgates.pruning.jobs import LocalJob
from headgates.records.folder import RunFolder

FAKE = """
import json, os, pathlib, signal, sys, time
root, name, what = pathlib.Path(sys.argv[1]), *sys.argv[2:4]
def until(file):
    while not (root / file).exists():
        time.sleep(0.01)
if what == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("epoch 1 of 2", flush=True)
with (root / f"started-{name}").open("a") as file:
    file.write(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} {os.getppid()}\\n")
if what == "fail":
    sys.exit(print("fit.py: error: no space left\\nbye") or 1)
if what == "crash":
    raise RuntimeError("[out] of memory")
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("hang", "deaf"):
    until("go")
if what.startswith("with-"):
    until("started-" + what[5:])
if what != "nothing":
    heads = {"heads_open": 3, "heads_total": 7, "heads_by_kind": {}}
    row = {"system": "l0", **heads, "bleu": 20.5, "bleu_signature": "s"}
    (root / f"runs/{name}").mkdir(parents=True)
    (root / f"runs/{name}/config.yaml").write_text(f"run_hash: hash-{name}\\n")
    (root / f"runs/{name}/result.json").write_text(
        json.dumps({"version": 1, "system": "l0", "finished": True, "rows": [row]})
    )
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(what, ..., needs=, jobs=) makes the points a, b, ... of which each does `what`."""
    (tmp_path / "fake.py").write_text(FAKE)

    def start(make, command, log, environment):
        assert command[:4] == [sys.executable, "-m", "headgates", "fit"]
        assert "--resume" in command
        own = [sys.executable, "-I", "-S", str(tmp_path / "fake.py"), str(tmp_path), *command[4:6]]
        return make(own, log, environment)

    slurm_start = grid.slurm_start
    monkeypatch.setattr(grid, "LocalJob", partial(start, LocalJob))
    monkeypatch.setattr(grid, "slurm_start", lambda *how: partial(start, slurm_start(*how)))
    monkeypatch.setattr(grid, "SLURM_POLL", 0.05)

    def run(*does, needs=(), jobs=2, retry=False, slurm=()):
        points = [
            GridPoint({"seed": i}, [name, what], f"hash-{name}", tuple(needs[i : i + 1]))
            for i, (name, what) in enumerate(zip("abcdefg", does, strict=False))
        ]
        options = SweepConfig(file="own.yaml", jobs=jobs, threads=5, slurm=list(slurm))
        run_grid(
            points,
            RunFolder(tmp_path / "runs/grid"),
            options,
            runs=str(tmp_path / "runs"),
            data_dir=None,
            retry=retry,
        )
        return points

    return run


def starts(tmp_path, name):
    """[process, threads, its parent] of every start."""
    path = tmp_path / f"started-{name}"
    return [list(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def on_disk(tmp_path):
    return json.loads((tmp_path / "runs/grid/points.json").read_text())["points"]


def test_a_failing_point_stops_no_other_and_is_tried_again_only_when_asked(tmp_path, fake, capsys):
    does = ("fail", "crash", "ok", "killed", "nothing")
    points = fake(*does)
    errors = [
        "no space left",
        "RuntimeError: [out] of memory",
        None,
        "ended by SIGKILL (out of memory?)",
        grid.UNFOUND,
    ]
    assert [point.error for point in points] == errors
    assert [point["error"] for point in on_disk(tmp_path)] == errors
    assert (points[2].run, points[2].heads, points[2].score) == ("c", "3/7", "bleu 20.50 (20.5 to 20.5)")
    assert "seed 2: done in" in (out := capsys.readouterr().out)
    assert "seed 0: failed after" in out
    assert "[out] of memory" in out.split("4 failed")[1], "the table does not read logs as markup"
    assert [len(starts(tmp_path, name)) for name in "abcde"] == [1] * 5
    assert {threads for _, threads, _ in starts(tmp_path, "a")} == {5}
    assert [point.status for point in fake(*does)] == ["failed", "failed", "done", "failed", "failed"]
    assert [len(starts(tmp_path, name)) for name in "abcde"] == [1] * 5, "nothing is repeated"
    again = fake("ok", "ok", "ok", "ok", "ok", retry=True)
    assert {point.status for point in again} == {"done"}
    assert [len(starts(tmp_path, name)) for name in "abcde"] == [2, 2, 1, 2, 2]
    assert again[0].seconds > points[0].seconds > 0, "of both starts"


def test_as_many_run_at_the_same_time_as_asked(fake, capsys):
    assert {point.status for point in fake("with-b", "with-a")} == {"done"}, "each waits for the other"
    capsys.readouterr()
    fake("ok", "ok", "ok", "ok", jobs=1)
    said = [line.split(":")[1].split()[0] for line in capsys.readouterr().out.splitlines() if ": " in line]
    assert said[2:6] == ["started", "done", "started", "done"]


def test_points_on_one_base_wait_until_it_is_made_and_others_go_first(tmp_path, fake):
    # a makes the base x, b needs it too, c another: were b started beside a, c would wait for a in vain
    points = fake("with-c", "ok", "ok", needs="xxy")
    assert {point.status for point in points} == {"done"}


def test_a_run_made_here_is_one_of_the_points(tmp_path, fake):
    def disk_full():
        raise OSError("the disk is full")

    points = [GridPoint({}, [], "hash-q", here=disk_full)]
    options = CompareConfig(source="runs/base", lambdas=[], methods=["importance"])
    folder = RunFolder(tmp_path / "runs/grid")
    run_grid(points, folder, options, runs=str(tmp_path / "runs"), data_dir=None, retry=True)
    assert (points[0].status, points[0].error) == ("failed", "the disk is full")


# ---------------------------------------------------------------- ended from outside


@pytest.fixture
def interrupted(tmp_path):
    """interrupted(*files): once the files are written, this process gets Ctrl-C."""
    # tests that a shell started in the background inherit an ignored one
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threads = []

    def at(*files):
        def wait():
            while not all((tmp_path / file).exists() for file in files):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield at
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGINT, before)


def gone(process):
    for _ in range(500):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{process}/stat").exists() and ") Z " in Path(f"/proc/{process}/stat").read_text():
            return True
        time.sleep(0.01)
    return False


def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on(tmp_path, fake, interrupted, monkeypatch):
    monkeypatch.setattr(
        jobs.stop, "__defaults__", ({signal.SIGINT: 0.2, signal.SIGTERM: 0.2, signal.SIGKILL: 5.0},)
    )
    interrupted("runs/a/result.json", "started-b", "started-c")
    with pytest.raises(KeyboardInterrupt):
        fake("ok", "hang", "deaf", "ok")
    assert all(gone(starts(tmp_path, name)[0][0]) for name in "bc")
    assert [point["status"] for point in on_disk(tmp_path)] == ["done", "running", "running", "waiting"]
    (tmp_path / "go").touch()
    assert {point.status for point in fake("ok", "hang", "deaf", "ok")} == {"done"}
    assert [len(starts(tmp_path, name)) for name in "abcd"] == [1, 2, 2, 1]
    assert (tmp_path / "runs/grid/logs/hash-b.log").read_text().count("$ ") == 2, "the log is continued"


PARENT = """
import pathlib, sys, time
from headgates.pruning.jobs import LocalJob
command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
print(LocalJob(command, pathlib.Path(sys.argv[1]), {}).process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_command_leaves_no_process(tmp_path):
    words = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        os.kill(child, 0)  # it runs
        parent.kill()
    assert gone(child)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1, "points": [{"numbr": 1}]}'])
def test_a_broken_state_is_one_line_with_what_to_do(tmp_path, fake, text):
    fake("ok")
    (tmp_path / "runs/grid/points.json").write_text(text)
    with pytest.raises(ValueError, match=r"points\.json.*; remove .*points\.json; finished runs are found"):
        fake("ok")


# ---------------------------------------------------------------- SLURM


def test_a_preempted_job_is_ended_and_submitted_again(tmp_path, fake):
    pytest.importorskip("submitit")

    def preempt():
        while not starts(tmp_path, "a"):
            time.sleep(0.01)
        os.kill(starts(tmp_path, "a")[0][2], signal.SIGUSR2)  # as SLURM warns a job
        while len(starts(tmp_path, "a")) < 2:
            time.sleep(0.01)
        (tmp_path / "go").touch()

    threading.Thread(target=preempt, daemon=True).start()
    (point,) = fake("hang", slurm=["cluster=local"])
    assert point.status == "done"
    first, second = starts(tmp_path, "a")
    assert first != second
    assert gone(first[0])


@pytest.mark.parametrize(
    ("slurm", "error"),
    [
        (["gpu"], "expected NAME=VALUE"),
        (["cluster=local", "gpus=1"], "--slurm: .*gpus"),
    ],
)
def test_a_wrong_parameter_of_slurm_is_one_line(fake, slurm, error):
    pytest.importorskip("submitit")
    with pytest.raises(ValueError, match=error) as raised:
        fake("ok", slurm=slurm)
    assert "\n" not in str(raised.value)


def test_how_long_runs_take_is_told_from_what_finished_ones_took(tmp_path):
    """Two runs that share a continued base, at 3 s an epoch and 5 s for a pass over the test set."""
    base = RunFolder(tmp_path / "base")
    row = {"system": "base", "heads_open": 7, "heads_total": 7, "heads_by_kind": {}, "seconds": 5.0}
    row |= {"bleu": 20.5, "bleu_signature": "s", "stage": {"seconds": 12.0, "epochs": 4}}
    base.write_json("result.json", {"rows": [row]})
    points = [GridPoint({}, [], name, ("c",), {name: 10, "c": 20}) for name in "ab"]
    assert grid.estimate(points, {}, None, 1).endswith(grid.UNKNOWN)
    assert "40 epochs of training in all: at least about 65 s" in grid.estimate(points, {}, base, 2)
    assert "1 runs to make, 10 epochs" in grid.estimate(points, {"a": base, "c": base}, base, 2)
    assert grid.estimate(points, {"a": base, "b": base}, base, 2) == ""


def test_the_epochs_of_a_configuration_count_each_run_that_it_starts_from():
    config = FitConfig(train=StageConfig(epochs=7), finetune=FinetuneConfig(epochs=3))
    assert grid.epochs_by_run(config, "run", "base", "more") == {"run": 6, "base": 7, "more": 3}
    assert grid.epochs_by_run(replace(config, base="there"), "run", "base") == {"run": 6}


def test_runs_without_training_do_not_use_up_the_estimate(fake, capsys):
    """A comparison makes these first, and they tell nothing of those that train."""
    fake("ok", "ok", "ok", jobs=1)
    said = capsys.readouterr().out
    assert said.count(grid.UNKNOWN) == 1
    assert "all runs are made" in said
