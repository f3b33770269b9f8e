"""Train a base translation model, put learned gates on its heads, and compare with pruning by scores.

python fit.py --gate l0 --lambda 0.01
"""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from headgates.commands import start
from headgates.data import load_corpus
from headgates.data.ranks import after_first, first
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.configs.schema import FitConfig
    from headgates.data import Corpus
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.lab import Run


def main() -> int:
    return start(
        "fit",
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
    corpus = read_text(config)
    # only now: these take seconds to import, and --help, a wrong flag, path or text need none of them
    from headgates.workbench.experiment_text import ExperimentText
    from headgates.workbench.protocol import make_runs

    text = None if corpus is None else ExperimentText(config, corpus)
    run = make_runs(config, text, finished=lambda run: first(lambda: draw(run)))
    first(lambda: show(run))


def read_text(config: "FitConfig") -> "Corpus | None":
    """The text that the configuration names; None where it is a base's, or that of a task of another kind."""
    if config.base is not None or config.task != "translation":
        say(f"starting from {config.base or config.data}")
        return None
    say(f"reading {config.data}, {config.src} to {config.tgt}")
    return after_first(  # it may be downloaded
        lambda: load_corpus(config.data, data_dir=config.data_dir, src=config.src, tgt=config.tgt)
    )


def draw(run: "Run") -> None:
    """Draw the figures and write the pages of a run that has just finished; of one that was there, the page
    that it lacks."""
    from headgates.report.fill import PAGE, update_pages

    if run.made or not (run.folder / PAGE).is_file():
        draw_figures(run)
        update_pages(
            run.folder,
            say,
            data_dir=run.config.data_dir,
            corpus=run.text.corpus,
            look=run.config.look_sentences,
        )


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
    from headgates.report.shapes import own_shape
    from headgates.report.table import comparison_table, next_commands

    comparison_table(run)
    own_shape(run)
    if (run / PAGE).is_file():
        print(f"report: {run / PAGE}")
    print("next:", *next_commands(run), sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
