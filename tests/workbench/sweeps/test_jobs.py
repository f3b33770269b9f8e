"""Parallel trials by a fake program: all run, a failing one stops no other, an interrupt leaves what can go
on, nothing runs twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from headgates.workbench.sweeps import jobs
from headgates.workbench.sweeps.jobs import FinishedTrial, Trial, next_index, run_trials
from headgates.workbench.sweeps.state import SweepState
from headgates.workbench.sweeps.sweep_file import read_sweep
from tests.worlds.processes import ended

# argv: folder, number, what to do. Every start leaves a line with its process number in
# folder/started-<number>.
FAKE = """
import json, os, pathlib, signal, sys, time
folder, number, what = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with (folder / f"started-{number}").open("a") as file:
    print(os.getpid(), os.environ["OMP_NUM_THREADS"], file=file)
print("epoch 1 of 2\\n\\n", flush=True)
def until(name):
    end = time.monotonic() + 60
    while not (folder / name).exists():
        assert time.monotonic() < end, name
        time.sleep(0.01)
if what == "fail":
    print("fit.py: error: no space left\\n(see the help)", file=sys.stderr)
    sys.exit(1)
if what == "crash":
    raise RuntimeError("[out] of memory")
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "deaf":
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    (folder / "deaf").write_text("!")
if what in ("hang", "deaf"):
    until("go")
if what == "together":
    until(f"started-{3 - number}")
if what != "nothing":
    result = {"heads_open": number, "heads_total": 31, "bleu": 20.0 + number, "bleu_ci95": [17, 29]}
    (folder / f"result-{number}").write_text(json.dumps(result))
"""


class Log:
    """A show that writes down what it is told, and makes a file once it has heard something of a running
    trial."""

    def __init__(self, heard):
        self.events, self.lines, self.heard = [], {}, heard

    def started(self, record):
        self.events.append(("started", record.number))

    def ended(self, record):
        self.events.append((record.status, record.number))

    def look(self, running):
        self.lines |= {number: line for number, (line, _) in running.items() if line}
        if self.lines:
            self.heard.touch()


@pytest.fixture
def sweep(tmp_path):
    """A sweep file of 5 trials."""
    path = tmp_path / "own.yaml"
    path.write_text("program: fit.py\nmethod: grid\nparameters:\n  seed: {values: [1, 2, 3, 4, 5]}\n")
    return read_sweep(path)


@pytest.fixture
def fake(tmp_path, sweep):
    """fake(what, ..., jobs=) runs trials 1, 2, ... of which each does `what`; gives the state and what the
    show was told."""
    (tmp_path / "fake.py").write_text(FAKE)

    def run(*does, jobs=2, again=False, bases="", count=0, heard="heard"):
        state = SweepState.open(
            tmp_path / "sweep", sweep, sweep.draws(seed=1, count=count or len(does)), seed=1, retry=again
        )
        log = Log(tmp_path / heard)

        def command(number):
            return [
                sys.executable,
                "-I",
                "-S",
                str(tmp_path / "fake.py"),
                str(tmp_path),
                str(number),
                does[number - 1],
            ]

        def find(trial):
            path = tmp_path / f"result-{trial.number}"
            return (
                FinishedTrial(f"run-{trial.number}", json.loads(path.read_text())) if path.exists() else None
            )

        trials = [
            Trial(record.number, command(record.number), bases[record.number - 1 :][:1])
            for record in state.records_with("waiting")
        ]
        options = {
            "environment": {"OMP_NUM_THREADS": "7"},
            "find_finished": find,
            "base_is_made": lambda base: False,
        }
        run_trials(state, trials, jobs=jobs, show=log, **options)
        return state, log

    return run


def starts(tmp_path, number):
    """[process, threads] of every start of a trial."""
    path = tmp_path / f"started-{number}"
    return [list(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def on_disk(tmp_path):
    content = json.loads((tmp_path / "sweep/trials.json").read_text())
    return {record["number"]: record for record in content["trials"]}


@pytest.fixture
def interrupt(tmp_path):
    """interrupt(signum, *files): once the files are written, this process gets the signal."""
    threads = []
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # tests in the background inherit an ignored one

    def start(signum, *files):
        paths = [tmp_path / name for name in files]

        def wait():
            end = time.monotonic() + 60
            while not all(path.exists() and path.stat().st_size for path in paths) and time.monotonic() < end:
                time.sleep(0.01)
            os.kill(os.getpid(), signum)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- running


def test_every_trial_runs_once_and_its_numbers_are_written_down(tmp_path, fake):
    state, log = fake("ok", "ok", "ok")
    assert [record.status for record in state.records.values()] == ["done"] * 3
    disk = on_disk(tmp_path)
    assert [disk[number]["run"] for number in (1, 2, 3)] == ["run-1", "run-2", "run-3"]
    assert disk[2]["result"] == {"heads_open": 2, "heads_total": 31, "bleu": 22.0, "bleu_ci95": [17, 29]}
    assert disk[2]["parameters"] == {"seed": 2}
    assert (disk[2]["exit_code"], disk[2]["error"]) == (0, None)
    assert disk[2]["seconds"] > 0
    for number in (1, 2, 3):
        assert [threads for _, threads in starts(tmp_path, number)] == [7]
        text = (tmp_path / f"sweep/logs/00{number}.log").read_text()
        assert text.startswith(f"$ {sys.executable} -I -S")
        assert "epoch 1 of 2" in text
    assert sorted(log.events) == sorted(
        [(what, number) for what in ("started", "done") for number in (1, 2, 3)]
    )


def test_two_jobs_run_at_the_same_time(fake):
    state, _ = fake("together", "together")  # each waits for the other
    assert len(state.records_with("done")) == 2


def test_one_job_runs_one_after_the_other(fake):
    _, log = fake("ok", "ok", "ok", jobs=1)
    assert log.events == [(what, number) for number in (1, 2, 3) for what in ("started", "done")]


def test_a_failing_trial_stops_no_other_and_its_error_is_kept(tmp_path, fake):
    state, log = fake("fail", "crash", "ok", "killed", "nothing")
    assert [record.number for record in state.records_with("done")] == [3]
    disk = on_disk(tmp_path)
    assert {number: disk[number]["error"] for number in (1, 2, 4, 5)} == {
        1: "no space left",
        2: "RuntimeError: [out] of memory",
        4: "ended by SIGKILL (out of memory?)",
        5: "it ended without an error, but no finished run has its configuration",
    }
    assert [disk[number]["exit_code"] for number in (1, 2, 3, 4, 5)] == [1, 1, 0, -9, 0]
    assert sorted(number for what, number in log.events if what == "failed") == [1, 2, 4, 5]


def test_what_a_running_trial_said_last_is_seen_while_it_runs(fake):
    _, log = fake("hang", heard="go")  # it goes on once it was heard
    assert log.lines == {1: "epoch 1 of 2"}


def test_a_run_that_is_finished_already_is_not_started(tmp_path, fake):
    (tmp_path / "result-1").write_text(
        '{"heads_open": 3, "heads_total": 31, "bleu": 1.0, "bleu_ci95": [0, 2]}'
    )
    state, log = fake("ok", "ok")
    assert starts(tmp_path, 1) == []
    assert state.records[1].result["heads_open"] == 3
    assert ("started", 1) not in log.events
    assert ("done", 1) in log.events


def test_a_program_that_is_not_there_is_an_error_and_not_a_failed_trial(tmp_path, sweep):
    state = SweepState.open(tmp_path / "sweep", sweep, sweep.draws(seed=1, count=1), seed=1)
    trial = Trial(1, [str(tmp_path / "no-such-program")], "")
    show = Log(tmp_path / "heard")
    with pytest.raises(OSError, match="no-such-program"):
        run_trials(
            state,
            [trial],
            jobs=1,
            environment={},
            find_finished=lambda _: None,
            base_is_made=lambda _: False,
            show=show,
        )


# ---------------------------------------------------------------- interrupted and continued


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "kill"])
def test_an_interrupted_sweep_stops_its_trials_and_goes_on_with_one_made_to_fail(
    tmp_path, fake, interrupt, signum
):
    interrupt(signum, "result-1", "started-3", "started-4")
    with pytest.raises(KeyboardInterrupt):
        fake("ok", "fail", "hang", "hang", "ok")
    for number in (3, 4):
        with pytest.raises(ProcessLookupError):
            os.kill(starts(tmp_path, number)[0][0], 0)
    disk = on_disk(tmp_path)
    assert [disk[number]["status"] for number in (1, 2, 3, 4, 5)] == [
        "done",
        "failed",
        "running",
        "running",
        "waiting",
    ]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "the handlers are put back"

    (tmp_path / "go").touch()
    state, _ = fake("ok", "fail", "hang", "hang", "ok")
    assert [record.number for record in state.records_with("done")] == [1, 3, 4, 5]
    assert [len(starts(tmp_path, number)) for number in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 1]
    assert state.records[3].seconds > disk[3]["seconds"] > 0, "the time of both starts"
    assert (tmp_path / "sweep/logs/003.log").read_text().count("$ ") == 2, "the log is continued"


def test_a_trial_that_hears_nothing_is_killed(tmp_path, fake, interrupt, monkeypatch):
    monkeypatch.setattr(jobs, "PATIENCE", {signal.SIGINT: 0.1, signal.SIGTERM: 0.1})
    interrupt(signal.SIGINT, "deaf")
    with pytest.raises(KeyboardInterrupt):
        fake("deaf", jobs=1)
    with pytest.raises(ProcessLookupError):
        os.kill(starts(tmp_path, 1)[0][0], 0)


PARENT = """
import pathlib, sys, time
from headgates.workbench.sweeps.jobs import Job, Trial
job = Job(Trial(1, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], ""), pathlib.Path(sys.argv[1]), {})
print(job.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_sweep_leaves_no_trial_behind(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    trial = int(parent.stdout.readline())
    os.kill(trial, 0)  # it runs
    parent.kill()
    parent.communicate()
    assert ended(trial)


def test_failed_trials_run_again_only_when_asked(tmp_path, fake):
    fake("fail", "ok")
    state, _ = fake("ok", "ok")
    assert [record.status for record in state.records.values()] == ["failed", "done"]
    state, _ = fake("ok", "ok", again=True)
    assert [record.status for record in state.records.values()] == ["done", "done"]
    assert (state.records[1].error, state.records[1].exit_code, state.retried) == (None, 0, {1})
    assert [len(starts(tmp_path, number)) for number in (1, 2)] == [2, 1]


def test_more_trials_are_added_to_those_that_are_done_and_fewer_forget_none(tmp_path, fake):
    fake("ok", "ok")
    state, _ = fake("ok", "ok", "ok")
    assert [len(starts(tmp_path, number)) for number in (1, 2, 3)] == [1, 1, 1]
    state, _ = fake("ok", "ok", "ok", count=1)
    assert [record.number for record in state.records_with("done")] == [1, 2, 3]


# ---------------------------------------------------------------- order


def trials(bases):
    return [Trial(i + 1, [], base) for i, base in enumerate(bases)]


def test_trials_whose_base_another_one_makes_let_others_go_first():
    assert next_index(trials("aab"), [], lambda _: False) == 0
    assert next_index(trials("aab"), ["a"], lambda _: False) == 2
    assert next_index(trials("aab"), ["a"], lambda base: base == "a") == 0, "the base is made"
    assert next_index(trials("aab"), ["a", "b"], lambda _: False) == 0, "nothing better to do than to wait"


def test_the_first_trials_of_different_bases_start_first(fake):
    _, log = fake("ok", "ok", "ok", bases="aab")
    begun = [number for what, number in log.events if what == "started"]
    assert begun == [1, 3, 2]
