"""Train a base translation model, put learned gates on its attention heads, and compare with greedy pruning.

    python fit.py --gate l0 --lambda 0.01
"""

import sys

from configs.cli import parse
from configs.schema import FitConfig


def main() -> int:
    config = parse(FitConfig, prog="fit.py", description=__doc__.split("\n")[0])
    # after parsing: these take seconds to import, and --help and a mistyped flag need none of them
    from protocol.experiment import Experiment
    from report.comparison_table import comparison_table
    from report.fill import PAGE

    try:
        run = Experiment(config).run()
    except (ValueError, OSError) as error:
        print(f"fit.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fit.py: interrupted; the same command with --resume continues after the last whole epoch", file=sys.stderr)
        return 130
    comparison_table(run)
    if (run / PAGE).is_file():
        print(f"report: {run / PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
