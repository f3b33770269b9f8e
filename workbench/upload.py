"""A grid as one run of Weights & Biases beside the runs of its points: its table, figure and summary."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from headgates.workbench.folder import RunFolder
from headgates.workbench.table import read_table
from headgates.workbench.tracker import is_followed, open_run, say_how_to_upload


def log_grid(
    folder: RunFolder,
    name: str,
    *,
    logger: str,
    job: str,
    base: RunFolder,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
) -> None:
    """Log NAME.csv and NAME.png of the grid's folder, into the same W&B run again where the command is
    repeated; nothing without --logger wandb. A failure costs one line on stderr. Raises ValueError where W&B
    refuses the name or the login."""
    if not is_followed(logger):
        return
    import wandb

    run = open_run(folder, job, {"base_hash": base.run_hash(), **config}, base)
    try:
        rows = read_table(folder, f"{name}.csv")
        points = partial(wandb.Table, columns=list(rows[0]), data=[list(row.values()) for row in rows])
        figure = partial(wandb.Image, str(folder / f"{name}.png"))
        run.attempt(
            {
                "points": lambda: run.run.log({"points": points(), "figure": figure()}),
                "summary": lambda: run.run.summary.update(dict(summary)),
            }
        )
        run.end(0)
    finally:
        run.end(1)
        wandb.teardown()
    say_how_to_upload([run])
