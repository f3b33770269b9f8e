"""Train a base translation model, put learned gates on its attention heads, and compare with greedy pruning.

python fit.py --gate l0 --lambda 0.01
"""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from headgates.data.ranks import first
from headgates.workbench.exit_code import exit_code

if TYPE_CHECKING:
    from headgates.configs.schema import FitConfig
    from headgates.workbench.folder import RunFolder


def main() -> int:
    return exit_code(
        "fit.py", run, interrupted="the same command with --resume continues from its last checkpoint"
    )


def run() -> None:
    # here: an interrupt while these are imported, which takes a second, is one line too
    from headgates.configs.cli import parse
    from headgates.configs.schema import FitConfig

    fit(parse(FitConfig, prog="fit.py", description=__doc__.split("\n")[0]))


def fit(config: "FitConfig") -> None:
    """Train and evaluate the runs of the configuration, and print how their systems compare."""
    from headgates.workbench.named_paths import check_fit
    from headgates.workbench.processes import join

    devices, num_nodes = join(config.devices, config.num_nodes)
    config = replace(config, devices=devices, num_nodes=num_nodes)
    check_fit(config)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.workbench.experiment import Experiment

    run = Experiment(config).run()
    first(lambda: show(run))


def show(run: "RunFolder") -> None:
    """Print what was found, how the systems of a finished run compare, its page, and what to type next."""
    from headgates.report.fill import PAGE
    from headgates.report.table import comparison_table

    comparison_table(run)
    if (run / PAGE).is_file():
        print(f"report: {run / PAGE}")
    print(f"next: python analyze.py {run.path} --siblings says what the heads do")


if __name__ == "__main__":
    sys.exit(main())
