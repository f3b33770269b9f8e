"""Train a base translation model, put learned gates on its heads, and compare with pruning by scores.

python fit.py --gate l0 --lambda 0.01
"""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from headgates.commands import start
from headgates.data.ranks import first
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.configs.schema import FitConfig
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.lab import Run


def main() -> int:
    return start(
        "fit.py",
        "headgates.configs.schema:FitConfig",
        fit,
        about=__doc__,
        interrupted="the same command with --resume continues from its last checkpoint",
    )


def fit(config: "FitConfig") -> None:
    """Train and evaluate the runs of the configuration, and print how their systems compare."""
    from headgates.workbench.named_paths import check_fit
    from headgates.workbench.processes import join

    devices, num_nodes = join(config.devices, config.num_nodes)
    config = replace(config, devices=devices, num_nodes=num_nodes)
    check_fit(config)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.workbench.protocol import make_runs

    run = make_runs(config, finished=lambda run: first(lambda: draw(run)))
    first(lambda: show(run))


def draw(run: "Run") -> None:
    """Draw the figures and write the pages of a run that has just finished; of one that was there, the page
    that it lacks."""
    from headgates.report.fill import PAGE, update_pages

    if run.made or not (run.folder / PAGE).is_file():
        draw_figures(run)
        update_pages(run.folder, say, data_dir=run.config.data_dir, corpus=run.text.corpus)


def draw_figures(run: "Run") -> None:
    """The figures of --dynamics and of --curve."""
    folder, metric = run.folder, run.task.metrics[0]
    # matplotlib takes a second to import, and few runs need it
    if run.job == "base" and run.config.dynamics:
        from headgates.report.pruning_figures import draw_dynamics
        from headgates.workbench.dynamics import NAME, read_rows

        title = f"{folder.path.name}: heads pruned while the base trains"
        draw_dynamics(read_rows(folder), folder / NAME, metric=metric, title=title)
    if run.job == "gates" and run.config.is_curve:
        from headgates.report.pruning_figures import draw_knee
        from headgates.workbench.table import read_table

        reference = folder.read_json("result.json")["reference"]
        title = f"{folder.path.name}: {metric.title} lost on validation against {reference}"
        limit, rows = run.config.drop_limit, read_table(folder, "curve.csv")
        draw_knee(rows, folder / "heads-curve", metric=metric, limit=limit, title=title)


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
