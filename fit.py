"""Train a base translation model, put learned gates on its attention heads, and compare with greedy pruning.

python fit.py --gate l0 --lambda 0.01
"""

import sys

from configs.cli import parse
from configs.schema import FitConfig
from protocol.exit_code import exit_code


def main() -> int:
    config = parse(FitConfig, prog="fit.py", description=__doc__.split("\n")[0])
    return exit_code("fit.py", lambda: fit(config), interrupted="the same command with --resume continues after the last whole epoch")


def fit(config: FitConfig) -> None:
    """Train and evaluate the runs of the configuration, and print how their systems compare."""
    # after parsing: these take seconds to import, and --help and a mistyped flag need none of them
    from protocol.experiment import Experiment
    from report.comparison_table import comparison_table
    from report.fill import PAGE

    run = Experiment(config).run()
    comparison_table(run)
    if (run / PAGE).is_file():
        print(f"report: {run / PAGE}")


if __name__ == "__main__":
    sys.exit(main())
