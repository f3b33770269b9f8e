"""Run a sweep file of Weights & Biases on this machine, without an account; draw BLEU against heads; make a W&B dashboard.

python sweep.py configs/sweeps/lambda.yaml --jobs 2
python sweep.py pareto runs/toy-en-de-l0-0.01-s1 --siblings
python sweep.py dashboard ENTITY/PROJECT
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from configs.cli import parse
from configs.schema import FitConfig
from configs.sweep import DashboardConfig, ParetoConfig, SweepConfig
from models.progress import say

if TYPE_CHECKING:
    from runfolder.folder import RunFolder
    from sweeps.file import Sweep
    from sweeps.live import Show
    from sweeps.runs import Planned
    from sweeps.space import Draw
    from sweeps.state import State

WORDS = {".csv": "table", ".json": "made by"}  # before the path of a file that was written
HERE = Path(__file__).resolve().parent
ABOUT = "Run the trials of a W&B sweep file on this machine. Also: sweep.py pareto RUN [RUN ...], sweep.py dashboard ENTITY/PROJECT."


def main() -> int:
    first, rest = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    command: Callable[[], int]
    if first == "pareto":
        command = partial(pareto, parse(ParetoConfig, rest, prog="sweep.py pareto"))
    elif first == "dashboard":
        command = partial(dashboard, parse(DashboardConfig, rest, prog="sweep.py dashboard"))
    else:
        command = partial(sweep, parse(SweepConfig, prog="sweep.py", description=ABOUT))
    try:
        return command()
    except (ValueError, OSError) as error:
        print(f"sweep.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sweep.py: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130


def sweep(config: SweepConfig) -> int:
    """Run the trials that are not done yet, then the table of all and the figure; 1 if any has failed."""
    if sys.platform == "win32":
        raise ValueError("a sweep stops its trials by process groups, which Windows has none of; run it in WSL")
    from sweeps.file import read_sweep
    from sweeps.space import draws

    file = read_sweep(config.file)
    drawn = draws(file, seed=config.seed, count=config.count)
    configs = trial_configs(config, file, drawn)
    # after every check of the file: these take seconds to import
    from runfolder.run_lock import RunLocks
    from sweeps.live import Show
    from sweeps.runs import planned
    from sweeps.state import State

    plans = dict(zip(configs, planned(list(configs.values())), strict=True))
    locks = RunLocks()
    locks.hold(Path(config.runs), config.folder.name)  # two at once would both start what waits
    try:
        state = State.open(config.folder, file, drawn, seed=config.seed, again=config.retry or config.fresh)
        with Show(state, file.varied) as show:
            run(config, file, state, plans, show)
        show.summary()
        report(config, state)
    finally:
        locks.release()
    failed = state.of("failed")
    if failed:
        print(f"{len(failed)} of {len(state.records)} trials failed; --retry tries them again, from their last whole epoch")
    return 1 if failed else 0


def trial_configs(config: SweepConfig, file: "Sweep", drawn: "Sequence[Draw]") -> dict[int, FitConfig]:
    """What fit.py reads from every trial's command line. Raises ValueError, naming trial and parameter, before anything starts."""
    from sweeps.command import fit_config
    from sweeps.state import described

    found = {}
    for draw in drawn:
        try:
            read = fit_config(file.command, draw.values)
        except ValueError as error:
            raise ValueError(f"{file.path}: trial {draw.number} ({described(draw.values)}): {error}") from None
        found[draw.number] = replace(read, data_dir=config.data_dir) if config.data_dir else read
    return found


def run(config: SweepConfig, file: "Sweep", state: "State", plans: "dict[int, Planned]", show: "Show") -> None:
    """Run what waits, with the threads shared out."""
    from sweeps.command import agent_command
    from sweeps.jobs import Found, Trial, run_trials
    from sweeps.runs import finished_run, numbers

    waiting = [record for record in state.of("waiting") if record.number in plans]
    jobs = max(1, min(config.jobs, len(waiting)))
    threads = config.threads or max(1, cores() // jobs)
    own = ["--resume", "--unique", "--logger", config.logger, "--runs", config.runs, "--threads", str(threads)]
    own += ["--data-dir", config.data_dir] if config.data_dir else []
    show.say(f"{file.path}: {len(waiting)} of {len(state.records)} trials to run, {jobs} at once, {threads} threads each")
    trials = []
    for record in waiting:
        words = agent_command(file.command, str(HERE / file.program), record.parameters, interpreter=sys.executable) + own
        words += ["--fresh"] if config.fresh and record.number in state.again else []
        trials.append(Trial(record.number, words, plans[record.number].base))

    def find(trial: Trial) -> Found | None:
        folder = finished_run(config.runs, plans[trial.number].run)
        return None if folder is None else Found(folder.path.name, numbers(folder))

    run_trials(
        state,
        trials,
        jobs=jobs,
        environment={"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
        find=find,
        ready=lambda base: finished_run(config.runs, base) is not None,
        view=show,
    )


def report(config: SweepConfig, state: "State") -> None:
    """BLEU against heads of what is done and its siblings."""
    from runfolder.folder import RunFolder
    from sweeps.runs import with_siblings

    done = [RunFolder(Path(config.runs) / record.run) for record in state.of("done") if record.run]
    done = [folder for folder in {folder.path: folder for folder in done}.values() if folder.path.is_dir()]
    if not done:
        print("no trial is done, so there is no figure")
        return
    try:
        draw(with_siblings(done, say), config.folder, title=config.folder.name)
    except ValueError as error:  # a sibling of other text must not cost the sweep its figure
        print(f"without siblings: {error}")
        draw(done, config.folder, title=config.folder.name)


def pareto(config: ParetoConfig) -> int:
    """The figure and table of the runs that are given."""
    from runfolder.folder import RunFolder
    from sweeps.runs import with_siblings

    folders = [RunFolder.open(path) for path in config.runs]
    out = Path(config.out) if config.out else folders[0].path.parent / "pareto"
    title = folders[0].path.resolve().name if len(folders) == 1 else f"{len(folders)} runs"
    draw(with_siblings(folders, say) if config.siblings else folders, out, title=title + " and siblings" * config.siblings)
    return 0


def draw(folders: "Sequence[RunFolder]", out: Path, *, title: str) -> None:
    from sweeps.pareto import report

    for path in report(folders, out, title=title):
        print(f"{WORDS.get(path.suffix, 'figure')}: {path}")


def dashboard(config: DashboardConfig) -> int:
    """A workspace of W&B, or the file that describes it."""
    from sweeps.dashboard import make

    make(config.target, config.out, say)
    return 0


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
