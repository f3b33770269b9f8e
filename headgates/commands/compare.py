"""Compare every method on one base: the same heads, text and steps; one figure, one table, and what they say
in plain words.

python compare.py runs/toy-en-de-none-s1 --methods greedy,weight-norm,random --heads 36,24,12
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgates.workbench.exit_code import exit_code

if TYPE_CHECKING:
    from headgates.configs.compare import CompareConfig

HERE = Path(__file__).resolve().parents[2]


def main() -> int:
    return exit_code("compare.py", run, interrupted="the same command continues where it stopped")


def run() -> int:
    # here: an interrupt while these are imported, which takes a second, is one line too
    from headgates.configs.cli import parse
    from headgates.configs.compare import CompareConfig

    return compare(parse(CompareConfig, prog="compare.py", description=__doc__.split("\n")[0]))


def compare(config: "CompareConfig") -> int:
    """Make the points that are not finished yet, then write figure, tables and summary. Return 1 if a point
    has failed, else 0."""
    if sys.platform == "win32":
        raise ValueError("the runs are stopped by process groups, which Windows has none of; run it in WSL")
    from headgates.workbench.named_paths import check_data_dir, check_run

    check_run(config.source)
    check_data_dir(config.data_dir)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.workbench.comparison import Comparison
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.run_lock import RunLocks
    from headgates.workbench.sweeps.compare_jobs import make_points
    from headgates.workbench.sweeps.compare_results import write_results
    from headgates.workbench.sweeps.compare_wandb import log_comparison
    from headgates.workbench.sweeps.jobs import cores

    comparison = Comparison(config)
    folder = RunFolder(Path(config.runs) / f"compare-{comparison.name}")
    comparison.check_folder(folder)
    locks = RunLocks()
    locks.hold(Path(config.runs), folder.path.name)  # two at once would both start what waits
    try:
        jobs = min(config.jobs, len(comparison.plan))
        threads = config.threads or max(1, cores() // jobs)
        state = make_points(comparison, folder, script=HERE / "fit.py", threads=threads, jobs=jobs)
        write_results(comparison, state, folder)
        log_comparison(comparison, folder)
    finally:
        locks.release()
    failed = state.records_with("failed")
    if failed:
        print(f"{len(failed)} of {len(state.records)} points have no run; the same command tries them again")
    print(f"next: python analyze.py {config.source} --siblings says what the heads do")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
