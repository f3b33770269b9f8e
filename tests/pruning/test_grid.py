"""Many recipes: a failure stops no other, finished rows are found, and processes make the rows that one does.

What processes do when they fail, are killed, interrupted or preempted is seen on fakes that start at once."""

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

from headgates.commands import prune
from headgates.commands.fit import FitOptions
from headgates.commands.prune import PruneOptions
from headgates.configs.cli import read_command
from headgates.configs.grid import GridOptions
from headgates.configs.recipe import Layers, Recipe, Units
from headgates.pruning import at_once, grid, jobs
from headgates.pruning.choosers import way
from headgates.pruning.grid import rows_of, without_repeats
from headgates.pruning.jobs import LocalJob
from tests.worlds.made_runs import BASE, lab_on
from tests.worlds.runs import well

NINE, FOUR = Units(9), Units(4)


def all_rows(runs: Path, *recipes: Recipe):
    lab, base = lab_on(runs)
    return rows_of(lab, base, recipes, GridOptions(), lambda recipe: [])


def test_a_recipe_that_fails_stops_no_other_and_says_why(shared_runs):
    recipes = [Recipe("random", NINE), Recipe("random", Units(17)), Recipe("random", FOUR)]
    rows, failed = all_rows(shared_runs, *recipes)
    assert [row.recipe for row in rows] == [recipes[0], recipes[2]]
    assert [each.recipe for each in failed] == [recipes[1]]
    assert "cannot keep 17 of 16 heads" in str(failed[0])


def test_the_error_of_a_single_recipe_is_the_error_of_the_command(shared_runs):
    with pytest.raises(ValueError, match="cannot keep 17"):
        all_rows(shared_runs, Recipe("random", Units(17)))


def test_finished_rows_are_found_whichever_command_made_them(tiny, capsys):
    recipes = [Recipe("random", NINE), Recipe("random", FOUR)]
    all_rows(tiny, recipes[0])
    capsys.readouterr()
    rows, _ = all_rows(tiny, *recipes)
    assert "2 recipes, 1 of them to make" in capsys.readouterr().out
    assert [row.result.heads_open for row in rows] == [9, 4]


def test_the_base_beside_them_is_estimated_and_another_machines_seconds_are_no_estimate(tiny, monkeypatch):
    lab, base = lab_on(tiny)
    trained = [Recipe("importance", NINE, epochs=2)]
    monkeypatch.setattr(grid, "device_name", lambda: base.result()["device"])
    said = "; training them and the base beside them, 4 epochs in all, takes about "
    assert grid.estimate(lab, base, trained).startswith(said)
    assert "6 epochs in all" in grid.estimate(lab, base, [*trained, Recipe("random", NINE, epochs=2)])
    whole = trained[0].trained_as_long
    monkeypatch.setattr(grid, "waiting_of", lambda *_: [])  # as if the base beside them were there
    one = [Recipe("importance", NINE, epochs=1)]
    assert grid.estimate(lab, base, one).startswith("; training them, 1 epoch in all, takes about ")
    monkeypatch.undo()
    monkeypatch.setattr(grid, "device_name", lambda: base.result()["device"])
    assert "2 epochs in all" in grid.estimate(lab, base, [whole])
    monkeypatch.setattr(grid, "device_name", lambda: "another")
    assert grid.estimate(lab, base, trained) == ""


def test_other_seeds_are_made_only_where_a_seed_changes_something():
    drawn = [
        Recipe("random", NINE),
        Recipe("importance", NINE, epochs=1),
        Recipe("l0", NINE),
        Recipe("obs", NINE),
    ]
    alike = [Recipe("weight-norm", FOUR), Recipe("layers", Layers(("encoder.1",)))]
    recipes = [
        Recipe(each.choose, each.budget, epochs=each.epochs, seed=seed)
        for seed in (1, 2)
        for each in drawn + alike
    ]
    found = without_repeats(recipes)
    assert [recipe.choose for recipe in found if recipe.seed == 2] == [each.choose for each in drawn]
    assert len([recipe for recipe in found if recipe.seed == 1]) == 6


def test_a_plan_for_a_speed_is_told_from_gates_for_it():
    (plan,) = read_command(FitOptions, ["--speedup", "2"]).own_recipes()
    (gates,) = read_command(PruneOptions, ["RUN", "--by", "l0", "--speedup", "2"]).recipes(["l0"], 1)
    assert [way(each).partition(": ")[2].split()[:2] for each in (plan, gates)] == [
        ["a", "plan"], ["gates", "learn"]
    ]  # fmt: skip
    assert ["frozen" in way(replace(gates, **how)) for how in ({}, {"refit": None, "epochs": 2})] == [
        True,
        False,
    ]
    assert way(Recipe("l0", NINE)) == ""


def test_a_plan_names_only_the_parts_that_may_close_and_what_they_are_measured_by():
    (heads,) = read_command(PruneOptions, ["RUN", "--speedup", "2", "--kinds", "heads"]).recipes([], 1)
    (every,) = read_command(PruneOptions, ["RUN", "--params", "0.5"]).recipes([], 1)
    assert "which heads stay, by what each costs in loss and in time" in way(heads)
    assert "which heads, neurons and layers stay" in way(every)
    assert way(every).endswith("in loss and in parameters")


def test_processes_make_the_rows_of_one_process_under_changed_settings(tiny, called):
    words = [
        "--by",
        "random",
        "--heads",
        "9,4",
        "--test-sentences",
        "7",
        "--search.beam",
        "1",
        "--threads",
        "1",
    ]
    made = []
    well(called(prune)(tiny / BASE, "--by", "random", "--heads", "9", "--threads", "1"))
    taken = tiny / "toy-en-de-random-9-s1"  # with another beam: in both cases the name gets a hash
    for number in (2, 1):
        well(called(prune)(tiny / BASE, *words, "--jobs", number))
        taken.rename(tiny.parent / "taken")
        files = tiny.glob("*random*/hypotheses/pruned.txt")
        made.append({path.parts[-3]: path.read_text() for path in files})
        for path in tiny.glob("*random*"):
            path.rename(tiny.parent / f"{number}-{path.name}")
        (tiny.parent / "taken").rename(taken)
    assert made[0] == made[1]
    assert len(made[0]) == 2


# ---------------------------------------------------------------- processes that fail and end


FAKE = """
import os, pathlib, signal, sys, time
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
    sys.exit(print("prune.py: error: no space left\\nbye") or 1)
if what == "crash":
    raise RuntimeError("[out] of memory")
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("hang", "deaf"):
    until("go")
if what.startswith("with-"):
    until("started-" + what[5:])
(root / f"ended-{name}").touch()
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(what, ..., jobs=) starts commands a, b, ... of which each does `what`; what failed, by name."""
    (tmp_path / "fake.py").write_text(FAKE)

    def start(make, command, log, environment):
        assert command[:3] == [sys.executable, "-m", "headgates"]
        own = [sys.executable, "-I", "-S", str(tmp_path / "fake.py"), str(tmp_path), *command[3:5]]
        return make(own, log, environment)

    slurm_start = at_once.slurm_start
    monkeypatch.setattr(at_once, "LocalJob", partial(start, LocalJob))
    monkeypatch.setattr(at_once, "slurm_start", lambda *how: partial(start, slurm_start(*how)))
    monkeypatch.setattr(at_once, "SLURM_POLL", 0.05)

    def run(*does, jobs=2, slurm=()):
        commands = {name: [name, what] for name, what in zip("abcdefg", does, strict=False)}
        options = GridOptions(jobs=jobs, slurm=list(slurm))
        return at_once.at_once(commands, tmp_path / "logs", options, threads=5)

    return run


def starts(tmp_path, name):
    """[process, threads, its parent] of every start."""
    path = tmp_path / f"started-{name}"
    return [list(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_single_model_is_a_job_of_slurm_too(tiny, monkeypatch):
    lab, base = lab_on(tiny)
    asked = []
    monkeypatch.setattr(grid, "failed_at_once", lambda *given: asked.append(given[2]) or {})
    recipe = Recipe("importance", NINE)
    for options, made in ((GridOptions(slurm=["timeout_min=60"]), [[recipe]]), (GridOptions(jobs=2), [])):
        asked.clear()
        lab.settings = replace(lab.settings, fresh=True)
        rows_of(lab, base, [recipe], options, lambda recipe: [])
        assert asked == made


def test_a_command_that_fails_stops_no_other_and_its_own_words_say_why(tmp_path, fake):
    assert fake("fail", "crash", "ok", "killed") == {
        "a": "no space left",
        "b": "RuntimeError: [out] of memory",
        "d": "ended by SIGKILL (out of memory?)",
    }
    assert [len(starts(tmp_path, name)) for name in "abcd"] == [1] * 4
    assert {threads for _, threads, _ in starts(tmp_path, "a")} == {5}


def test_as_many_run_at_the_same_time_as_asked(fake, capsys):
    assert fake("with-b", "with-a") == {}, "each waits for the other"
    capsys.readouterr()
    fake("ok", "ok", jobs=1)
    said = [line.split(":")[1].split()[0] for line in capsys.readouterr().out.splitlines() if ": " in line]
    assert said == ["started", "done", "started", "done"]


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


def test_ctrl_c_leaves_no_process(tmp_path, fake, interrupted, monkeypatch):
    patience = {signal.SIGINT: 0.2, signal.SIGTERM: 0.2, signal.SIGKILL: 5.0}
    monkeypatch.setattr(jobs.stop, "__defaults__", (patience,))
    interrupted("ended-a", "started-b", "started-c")
    with pytest.raises(KeyboardInterrupt):
        fake("ok", "hang", "deaf", "ok")
    assert all(gone(starts(tmp_path, name)[0][0]) for name in "bc")
    assert not starts(tmp_path, "d")


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
    assert fake("hang", slurm=["cluster=local"]) == {}
    first, second = starts(tmp_path, "a")
    assert first != second
    assert gone(first[0])


@pytest.mark.parametrize(
    ("slurm", "error"),
    [
        (["gpu"], "expected NAME=VALUE"),
        (["cluster=local", "gpus=1"], "--slurm: .*gpus"),
        (["cluster=local", "timeout_min=[1"], "timeout_min.*int"),
        (["cluster=local", "cpus_per_task=1:30:00"], "cpus_per_task.*int"),
    ],
)
def test_a_wrong_parameter_of_slurm_is_one_line(fake, slurm, error):
    pytest.importorskip("submitit")
    with pytest.raises(ValueError, match=error) as raised:
        fake("ok", slurm=slurm)
    assert "\n" not in str(raised.value)
