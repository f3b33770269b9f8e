"""Run several commands at once, each in a process of its own: on this machine, or in jobs of SLURM."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgates.configs.cli import config_hash
from headgates.configs.grid import GridOptions
from headgates.data.ranks import processor_cores
from headgates.models.progress import minutes, say
from headgates.pruning.jobs import POLL, ROOT, Job, LocalJob, Start, error_of, last_lines, slurm_start, stop

SLURM_POLL = 2.0  # seconds between looks at jobs


def several(options: GridOptions) -> bool:
    """Whether commands are run in processes of their own."""
    return options.jobs > 1 or bool(options.slurm)


def check_precision(options: GridOptions, precision: str) -> None:
    """Raises ValueError where machines of SLURM would choose what the commands train in."""
    if options.slurm and precision == "auto":
        raise ValueError(
            "--slurm needs a precision: auto is chosen by this machine, and the runs are made on others; "
            "give --precision bf16, or 32"
        )


def at_once(
    commands: Mapping[str, Sequence[str]], folder: Path, options: GridOptions, *, threads: int = 0
) -> dict[str, str]:
    """Run commands of headgates, and return why those failed that did, by their titles.

    commands: the words of each by a title. folder: what they write is in its logs. threads: CPU threads that
    each is given as a setting, 0 for its share of the cores. Ctrl-C ends all processes, and is raised again.
    Raises ValueError on Windows, and at --slurm as `slurm_start` does."""
    if sys.platform == "win32":
        raise ValueError("processes are stopped by groups, which Windows does not have; use WSL, or --jobs 1")
    folder.mkdir(parents=True, exist_ok=True)
    start: Start = slurm_start(options.slurm, folder / "slurm") if options.slurm else LocalJob
    jobs = min(options.jobs or len(commands), len(commands))
    share = threads or (0 if options.slurm else max(1, processor_cores() // jobs))
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    environment |= {"OMP_NUM_THREADS": str(share)} if share else {}
    queue, running, failed = list(commands), dict[str, tuple[Job, float]](), dict[str, str]()
    live = Live(get_renderable=lambda: running_table(running), refresh_per_second=2, transient=True)
    with live if sys.stdout.isatty() else nullcontext():
        try:
            while queue or running:
                while queue and len(running) < jobs:
                    title = queue.pop(0)
                    words = [*commands[title], *([f"--threads={threads}"] * bool(threads))]
                    log = folder / f"{config_hash({'command': words})}.log"
                    job = start([sys.executable, "-m", "headgates", *words], log, environment)
                    running[title] = job, time.monotonic()
                    say(f"{title}: started ({log})")
                for title, (job, begin) in list(running.items()):
                    if (code := job.poll()) is not None:
                        del running[title]
                        if code:
                            failed[title] = error_of(job, code)
                        took = minutes(time.monotonic() - begin)
                        say(f"{title}: {'failed' if code else 'done'} after {took}")
                if running:
                    time.sleep(SLURM_POLL if options.slurm else POLL)
        except BaseException:  # whatever the exception: nothing keeps running unwatched
            stop([job for job, _ in running.values()])
            raise
    return failed


def running_table(running: Mapping[str, tuple[Job, float]]) -> Table:
    """A row for each command that runs, with the last line that it has written."""
    shown = Table("command", "last line", "time")
    for title, (job, begin) in running.items():
        line = next(reversed(last_lines(job)), "")
        took = minutes(time.monotonic() - begin)
        shown.add_row(Text(title), Text(line, no_wrap=True, overflow="ellipsis"), took)
    return shown
