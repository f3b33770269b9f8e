"""A comparison as one run of Weights & Biases, in the group of its base beside the runs of its points."""

import json
from functools import partial
from typing import Any

from headgates.lightning_modules.tracker import is_followed, open_run, say_how_to_upload
from headgates.lightning_modules.wandb_tables import RECORDED, last_names
from headgates.report.compare_files import NAME
from headgates.workbench.comparison import Comparison
from headgates.workbench.folder import RunFolder
from headgates.workbench.table import read_table

JOB = "comparison"


def log_comparison(comparison: Comparison, folder: RunFolder) -> None:
    """Log what `write_results` wrote: the table of all points, the figure, and the summary's sentences; into
    the same W&B run again where the command is repeated. Does nothing without --logger wandb. A failure costs
    one line on stderr and nothing else.

    Raises ValueError where W&B refuses: the name, the login, no network."""
    if not is_followed(comparison.config.logger):
        return
    import wandb

    content = folder.read_json(f"{NAME}.json")
    config = {name: content[name] for name in ("base_hash", "kinds", *RECORDED)} | {
        "base": last_names(content["base"])
    }
    config |= {
        name: getattr(comparison.config, name)
        for name in ("methods", "close", "finetune", "heads", "lambdas", "seeds", "seed")
    }
    run = open_run(folder, JOB, config, comparison.base)
    try:
        rows = read_table(folder, f"{NAME}.csv")
        table = partial(wandb.Table, columns=list(rows[0]), data=[list(row.values()) for row in rows])
        items: dict[str, Any] = {
            "points": lambda: run.run.log({"points": table()}),
            "figure": lambda: run.run.log({"figure": wandb.Image(str(folder / f"{NAME}.png"))}),
            "summary": lambda: run.run.summary.update(
                {"summary": "\n".join(content["summary"]), "ranks": json.dumps(content["ranks"])}
            ),
        }
        for name, action in items.items():
            run.try_to_log(name, action)
        run.end(0)
    finally:
        run.end(1)
        wandb.teardown()
    run.report_failures("the same command tries again, and")
    say_how_to_upload([run])
