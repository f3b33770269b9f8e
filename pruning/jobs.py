"""One run of fit.py as a process of its own: on this machine, or in a job of SLURM (by submitit).

A process is the leader of a group, so Ctrl-C reaches only the command that started it, which then asks the
whole group to end before it kills it. On Linux the process also ends when that command is killed.
"""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import headgates
from headgates.configs.yaml_file import scalar

ROOT = Path(headgates.__file__).resolve().parents[1]  # where `-m headgates` is found
POLL = 0.2  # seconds between looks at a process
TAIL = 4096  # bytes at the end of a log in which the last lines are searched
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none
# signals that end a process -> seconds until the next signal
PATIENCE = {signal.SIGINT: 20.0, signal.SIGTERM: 10.0, KILL: 5.0}
CHECKPOINT_PATIENCE = {signal.SIGTERM: 60.0, KILL: 5.0}  # fit.py saves the step it is at


# a running fit.py: `log`, the bytes that it had at the start (`begin`), `poll` for the exit code, `send`
Job: TypeAlias = "LocalJob | SlurmJob"
Start = Callable[[Sequence[str], Path, Mapping[str, str]], Job]  # command, log, environment


class LocalJob:
    """fit.py in a process of this machine."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]):
        self.log = log
        with log.open("ab") as file:  # the log of an interrupted run is continued
            file.write(f"$ {shlex.join(command)}\n".encode())
            file.flush()
            self.begin = file.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=partial(end_with, os.getpid()) if sys.platform == "linux" else None,
            )

    def poll(self) -> int | None:
        return self.process.poll()

    def send(self, signum: int) -> None:
        with suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self.process.pid, signum)


def end_with(parent: int) -> None:
    """Ask the kernel to end this process when the process that started it is killed. parent: its number."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM warns every process; SlurmTask answers
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # killed before the kernel was asked
        os._exit(1)


def stop(jobs: Sequence[Job], patience: Mapping[signal.Signals, float] = PATIENCE) -> None:
    """End all jobs by one signal after the other; Ctrl-C goes on to the next signal at once."""
    for signum, seconds in patience.items():
        if signum != KILL and signal.getsignal(signum) is signal.SIG_IGN:
            continue  # in the background of a shell: the jobs ignore it too
        with suppress(KeyboardInterrupt):
            for job in jobs:
                job.send(signum)
            until = time.monotonic() + seconds
            while any(job.poll() is None for job in jobs) and time.monotonic() < until:
                time.sleep(POLL / 4)


def last_lines(job: Job) -> list[str]:
    """The last lines that a job has written, without empty ones."""
    with job.log.open("rb") as file:
        file.seek(max(job.begin, file.seek(0, os.SEEK_END) - TAIL))
        text = file.read().decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def error_of(job: Job, code: int) -> str:
    """Why a job has failed, in one line: the error of fit.py if the log has one, else the last line."""
    if code < 0:
        why = " (out of memory?)" if -code == KILL else ""
        return f"ended by {signal.Signals(-code).name}{why}"
    lines = last_lines(job)
    errors = [after for _, error, after in (line.partition(": error: ") for line in lines) if error]
    return (errors or lines or [f"exit code {code}, and nothing in the log"])[-1]


# ---------------------------------------------------------------- SLURM


@dataclass
class SlurmTask:
    """What a SLURM job runs. submitit calls `checkpoint` before a time limit or a preemption and queues what
    it returns; as the command has --resume, the run continues where it was saved."""

    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]

    def __call__(self) -> int:
        self.job = LocalJob(self.command, self.log, self.environment)
        try:
            while (code := self.job.poll()) is None:  # no wait(): a signal's handler could not poll beside it
                time.sleep(POLL)
        except BaseException:
            stop([self.job])
            raise
        return code

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        stop([self.job], CHECKPOINT_PATIENCE)
        return DelayedSubmission(SlurmTask(self.command, self.log, self.environment))


class SlurmJob:
    """fit.py in a job of a submitit executor."""

    def __init__(self, executor: Any, command: Sequence[str], log: Path, environment: Mapping[str, str]):
        from submitit.helpers import environment_variables

        log.touch()
        self.log, self.begin, self.cancelled = log, log.stat().st_size, False
        with environment_variables(**environment):  # the job finds this package as the command does
            self.job = executor.submit(SlurmTask(command, log, environment))

    def poll(self) -> int | None:
        if self.cancelled:
            return -signal.SIGTERM
        if not self.job.done():
            return None
        if (error := self.job.exception()) is None:
            return int(self.job.result())
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"SLURM job {self.job.job_id}: error: {str(error).strip().splitlines()[-1]}\n")
        return 1

    def send(self, signum: int) -> None:
        if not self.cancelled:
            self.job.cancel(check=False)
        self.cancelled = True


def slurm_start(options: Sequence[str], folder: Path) -> Start:
    """What starts jobs by submitit. options: NAME=VALUE of its parameters; folder: where it
    keeps its files. Raises ValueError without submitit or SLURM, and at a parameter that is not known."""
    try:
        import submitit
    except ImportError:
        raise ValueError("--slurm needs the package submitit: pip install submitit") from None
    if wrong := [option for option in options if "=" not in option]:
        raise ValueError(f"--slurm: expected NAME=VALUE, such as timeout_min=240, got {wrong[0]}")
    given = {name: scalar(value) for name, _, value in (option.partition("=") for option in options)}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=given.pop("cluster", "slurm"))
        executor.update_parameters(**{"name": "headgates", "timeout_min": 240} | given)
    except (AssertionError, NameError, RuntimeError, ValueError) as error:
        raise ValueError(f"--slurm: {' '.join(str(error).split())}") from None
    return partial(SlurmJob, executor)
