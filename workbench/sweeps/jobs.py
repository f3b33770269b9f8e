"""Run trials as processes, several at once, each with its own log. However they end, the state on disk says
how to continue.

Each trial is a process group, so that Ctrl-C reaches this program alone, which asks the trials to end before
it kills them. Trials on one base wait for each other until the base is trained (by the locks of fit.py), so
trials on other bases start first.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headgates.workbench.exit_code import kill_as_interrupt
from headgates.workbench.sweeps.live import Show
from headgates.workbench.sweeps.state import SweepState

POLL = 0.2  # seconds between looks at the running trials
TAIL = 4096  # bytes at the end of a log in which its last line is searched
PATIENCE = {
    signal.SIGINT: 20.0,
    signal.SIGTERM: 10.0,
}  # signals that ask a trial to end, and seconds until the next; then it is killed
ERROR = "fit.py: error: "


@dataclass(frozen=True)
class Trial:
    """What a trial needs to run. base: the hash of its base; trials on one base may have to wait for each
    other."""

    number: int
    command: list[str]
    base: str


@dataclass(frozen=True)
class FinishedTrial:
    """The folder name of a finished run, and the part of its result that the sweep keeps."""

    run: str
    result: dict[str, Any]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with(sweep: int) -> None:
    """Ask the kernel to end this process where the sweep that started it is killed: nobody would watch it any
    more. sweep: its number."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != sweep:  # killed before the kernel was asked
        os._exit(1)


class Job:
    """A running trial."""

    def __init__(self, trial: Trial, log: Path, environment: dict[str, str]):
        self.trial, self.log, self.begin = trial, log, time.monotonic()
        with log.open("ab") as file:  # an interrupted trial's log is continued
            file.write(f"$ {' '.join(trial.command)}\n".encode())
            file.flush()
            self.offset = file.tell()
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            streams["preexec_fn"] = partial(end_with, os.getpid()) if sys.platform == "linux" else None
            self.process = subprocess.Popen(
                trial.command, env={**os.environ, **environment}, start_new_session=True, **streams
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def lines(self) -> list[str]:
        """The last lines of the log since this start, without empty ones."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self.offset, end - TAIL))
            text = file.read().decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def error(self) -> str:
        """Why the trial failed, in one line: the error of fit.py if the log has one."""
        code, lines = self.process.returncode, self.lines()
        if code < 0:
            return f"ended by {signal.Signals(-code).name}" + (
                " (out of memory?)" if -code == signal.SIGKILL else ""
            )
        errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)] or lines
        return errors[-1] if errors else f"exit code {code}, and nothing in the log"

    def send(self, signum: int) -> None:
        """Send a signal to the trial and the processes it started."""
        with suppress(ProcessLookupError):  # it has already ended
            os.killpg(self.process.pid, signum)


def run_trials(
    state: SweepState,
    trials: Sequence[Trial],
    *,
    jobs: int,
    environment: dict[str, str],
    find_finished: Callable[[Trial], FinishedTrial | None],
    base_is_made: Callable[[str], bool],
    show: Show,
) -> None:
    """Run the trials, `jobs` at once, until each is done or failed; every change is saved.

    A failing trial does not stop the others. An interrupt or a kill stops all, leaves them `running` in the
    state, and is raised as KeyboardInterrupt."""
    waiting, running = list(trials), list[Job]()

    def end(number: int, status: str, finished: FinishedTrial | None = None) -> None:
        record = state.records[number]
        record.status = status
        if finished:
            record.run, record.result = finished.run, finished.result
        state.save()
        show.ended(record)

    with kill_as_interrupt():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    trial = waiting.pop(
                        next_index(waiting, [job.trial.base for job in running], base_is_made)
                    )
                    record = state.records[trial.number]
                    if finished := find_finished(trial):
                        end(trial.number, "done", finished)
                        continue
                    record.status = "running"
                    state.save()  # before the start: a crash of this program must not forget a trial
                    running.append(Job(trial, state.folder / record.log, environment))
                    show.started(record)
                show.look(
                    {job.trial.number: (next(iter(job.lines()[-1:]), ""), job.seconds) for job in running}
                )
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    record = state.records[job.trial.number]
                    record.exit_code = job.process.returncode
                    record.seconds += job.seconds
                    finished = find_finished(job.trial) if record.exit_code == 0 else None
                    if finished is None:
                        record.error = (
                            job.error()
                            if record.exit_code
                            else "it ended without an error, but no finished run has its configuration"
                        )
                    end(job.trial.number, "done" if finished else "failed", finished)
                if running:
                    time.sleep(POLL)
        except BaseException:  # whatever the exception: no trial may keep running unwatched
            stop(running)
            for job in running:
                state.records[job.trial.number].seconds += job.seconds
            state.save()
            raise


def next_index(
    waiting: Sequence[Trial], busy_bases: Sequence[str], base_is_made: Callable[[str], bool]
) -> int:
    """Index of the waiting trial that starts next: the first whose base is trained, or not being trained;
    otherwise simply the first."""
    free = (i for i, trial in enumerate(waiting) if trial.base not in busy_bases or base_is_made(trial.base))
    return next(free, 0)


def stop(jobs: Sequence[Job]) -> None:
    """End all jobs by the signals of PATIENCE, then by a kill; an interrupt in between kills at once."""
    with suppress(KeyboardInterrupt):
        for signum, seconds in PATIENCE.items():
            if signal.getsignal(signum) is signal.SIG_IGN:  # in the background: the trials ignore it too
                continue
            for job in jobs:
                job.send(signum)
            until = time.monotonic() + seconds
            while any(job.process.poll() is None for job in jobs) and time.monotonic() < until:
                time.sleep(POLL / 4)
    for job in jobs:  # also processes that a trial left behind
        job.send(signal.SIGKILL)
        job.process.wait()
