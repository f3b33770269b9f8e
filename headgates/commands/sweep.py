"""Run a sweep file of Weights & Biases on this machine, without an account; draw BLEU against heads; make a
W&B dashboard.

python sweep.py configs/sweeps/lambda.yaml --jobs 2
python sweep.py pareto runs/toy-en-de-l0-0.01-s1 --siblings
python sweep.py dashboard ENTITY/PROJECT
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headgates.configs.did_you_mean import did_you_mean
from headgates.models.progress import say
from headgates.workbench.exit_code import exit_code

if TYPE_CHECKING:
    from headgates.configs.schema import FitConfig
    from headgates.configs.sweep import ParetoConfig, SweepConfig
    from headgates.workbench.sweeps.live import Show
    from headgates.workbench.sweeps.parameters import Draw
    from headgates.workbench.sweeps.runs import PlannedRun
    from headgates.workbench.sweeps.state import SweepState
    from headgates.workbench.sweeps.sweep_file import SweepFile

HERE = Path(__file__).resolve().parents[2]
ABOUT = "Run the trials of a W&B sweep file on this machine. Also: sweep.py pareto RUN [RUN ...], sweep.py dashboard ENTITY/PROJECT."


def main() -> int:
    return exit_code("sweep.py", run, interrupted="the same command continues where it stopped")


def run() -> int | None:
    # here: an interrupt while these are imported, which takes a second, is one line too
    from headgates.configs.cli import parse
    from headgates.configs.sweep import DashboardConfig, ParetoConfig, SweepConfig

    first, *rest = sys.argv[1:] or [""]
    hint = (
        "" if first.startswith("-") or os.path.exists(first) else did_you_mean(first, ["pareto", "dashboard"])
    )
    if first == "pareto":
        pareto(parse(ParetoConfig, rest, prog="sweep.py pareto"))
    elif first == "dashboard":
        config = parse(DashboardConfig, rest, prog="sweep.py dashboard")
        from headgates.workbench.sweeps.dashboard import (
            make_dashboard,  # after parsing: wandb takes a second to import
        )

        make_dashboard(config.target, config.out, say)
    elif hint:
        print(f"sweep.py: error: {first} is neither a sweep file nor a command{hint}", file=sys.stderr)
        return 2
    else:
        return sweep(parse(SweepConfig, prog="sweep.py", description=ABOUT))
    return None


def sweep(config: "SweepConfig") -> int:
    """Run the trials that are not done yet, then print the table of all and draw the figure. Return 1 if any
    has failed, else 0."""
    if sys.platform == "win32":
        raise ValueError(
            "a sweep stops its trials by process groups, which Windows has none of; run it in WSL"
        )
    from headgates.workbench.named_paths import check_data_dir
    from headgates.workbench.sweeps.sweep_file import read_sweep

    check_data_dir(config.data_dir)
    file = read_sweep(config.file)
    draws = file.draws(seed=config.seed, count=config.count)
    configs = trial_configs(config, file, draws)
    # after every check of the file: these take seconds to import
    from headgates.workbench.run_lock import RunLocks
    from headgates.workbench.sweeps.live import Show
    from headgates.workbench.sweeps.runs import planned_runs
    from headgates.workbench.sweeps.state import SweepState

    plans = dict(zip(configs, planned_runs(list(configs.values())), strict=True))
    locks = RunLocks()
    locks.hold(Path(config.runs), config.folder.name)  # two at once would both start what waits
    try:
        state = SweepState.open(
            config.folder, file, draws, seed=config.seed, retry=config.retry or config.fresh
        )
        with Show(state, file.varied_parameters) as show:
            run_waiting(config, file, state, plans, show)
        show.summary()
        draw_sweep(config, state)
    finally:
        locks.release()
    failed = state.records_with("failed")
    if failed:
        print(
            f"{len(failed)} of {len(state.records)} trials failed; --retry tries them again, from their last whole epoch"
        )
    return 1 if failed else 0


def trial_configs(
    config: "SweepConfig", file: "SweepFile", draws: "Sequence[Draw]"
) -> "dict[int, FitConfig]":
    """The configuration of every trial, read from its command line as fit.py does. Raises ValueError that
    names trial and parameter."""
    from headgates.workbench.named_paths import check_fit
    from headgates.workbench.sweeps.command import fit_config
    from headgates.workbench.sweeps.state import described

    configs = {}
    for draw in draws:
        try:
            trial = fit_config(file.command, draw.values)
            trial = replace(trial, data_dir=config.data_dir) if config.data_dir else trial
            check_fit(trial)
        except ValueError as error:
            raise ValueError(
                f"{file.path}: trial {draw.number} ({described(draw.values)}): {error}"
            ) from None
        configs[draw.number] = trial
    return configs


def run_waiting(
    config: "SweepConfig",
    file: "SweepFile",
    state: "SweepState",
    plans: "dict[int, PlannedRun]",
    show: "Show",
) -> None:
    """Run the trials that wait, with the threads shared out."""
    from headgates.workbench.sweeps.command import agent_command
    from headgates.workbench.sweeps.jobs import FinishedTrial, Trial, cores, run_trials
    from headgates.workbench.sweeps.parameters import PROGRAM
    from headgates.workbench.sweeps.runs import finished_run, own_row

    waiting = [record for record in state.records_with("waiting") if record.number in plans]
    jobs = max(1, min(config.jobs, len(waiting)))
    threads = config.threads or max(1, cores() // jobs)
    flags = [
        "--resume",
        "--unique",
        "--logger",
        config.logger,
        "--runs",
        config.runs,
        "--threads",
        str(threads),
    ]
    flags += ["--data-dir", config.data_dir] if config.data_dir else []
    show.say(
        f"{file.path}: {len(waiting)} of {len(state.records)} trials to run, {jobs} at once, {threads} threads each"
    )
    trials = []
    for record in waiting:
        command = (
            agent_command(file.command, str(HERE / PROGRAM), record.parameters, interpreter=sys.executable)
            + flags
        )
        command += ["--fresh"] if config.fresh and record.number in state.retried else []
        trials.append(Trial(record.number, command, plans[record.number].base_hash))

    def find_finished(trial: Trial) -> FinishedTrial | None:
        folder = finished_run(config.runs, plans[trial.number].run_hash)
        return None if folder is None else FinishedTrial(folder.path.name, own_row(folder))

    def base_is_made(base: str) -> bool:
        return finished_run(config.runs, base) is not None

    environment = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    run_trials(
        state,
        trials,
        jobs=jobs,
        environment=environment,
        find_finished=find_finished,
        base_is_made=base_is_made,
        show=show,
    )


def draw_sweep(config: "SweepConfig", state: "SweepState") -> None:
    """Draw BLEU against heads for the trials that are done and their siblings."""
    from headgates.report.bleu_heads import write_bleu_heads
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.sweeps.runs import with_siblings

    names = dict.fromkeys(record.run for record in state.records_with("done") if record.run)
    done = [RunFolder(Path(config.runs) / name) for name in names if (Path(config.runs) / name).is_dir()]
    if not done:
        print("no trial is done, so there is no figure")
        return
    try:
        write_bleu_heads(with_siblings(done, say), config.folder, title=config.folder.name)
    except ValueError as error:  # a sibling of other text must not cost the sweep its figure
        print(f"without siblings: {error}")
        write_bleu_heads(done, config.folder, title=config.folder.name)


def pareto(config: "ParetoConfig") -> None:
    """Write the figure and the tables of BLEU against open heads for the runs that are given."""
    from headgates.workbench.named_paths import check_run

    for path in config.runs:
        check_run(path)
    from headgates.report.bleu_heads import write_bleu_heads
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.sweeps.runs import with_siblings

    folders = [RunFolder.open(path) for path in config.runs]
    out = Path(config.out) if config.out else folders[0].path.parent / "pareto"
    title = folders[0].path.resolve().name if len(folders) == 1 else f"{len(folders)} runs"
    title = title + " and siblings" * config.siblings if config.name == "pareto" else config.name
    chosen = with_siblings(folders, say) if config.siblings else folders
    write_bleu_heads(chosen, out, title=title, name=config.name, heads_of=config.map, copies=config.copies)


if __name__ == "__main__":
    sys.exit(main())
