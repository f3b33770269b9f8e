"""What a stage of training shows to Weights & Biases after every epoch: its gates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl

from headgates.lab import wandb_tables
from headgates.lab.wandb_run import WITHOUT, FollowedRun
from headgates.lightning_modules.remembers import Remembers
from headgates.lightning_modules.stage_callback import Watcher


class WandbWatcher(Remembers, Watcher):
    """Logs the gates after every epoch, as a picture and a table of the heads after all epochs so far."""

    remembered = ("rows",)

    def __init__(self, followed: FollowedRun):
        self.followed, self.rows = followed, list[dict[str, Any]]()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        if module.gating is None or not trainer.is_global_zero:
            return
        epoch = trainer.current_epoch + 1
        now = wandb_tables.gate_rows(module.gate_bank, epoch)
        self.rows = [*(row for row in self.rows if row["epoch"] < epoch), *now]
        self.followed.attempt({"heat map": lambda: self.draw(now, trainer.global_step - 1)}, WITHOUT)

    def draw(self, now: Sequence[dict[str, Any]], step: int) -> None:
        import wandb
        from matplotlib.figure import Figure  # here: half a second, and most runs do not need it

        sites = list(dict.fromkeys(row["site"] for row in now))
        values = np.full((len(sites), 1 + max(row["head"] for row in now)), np.nan)
        for row in now:
            values[sites.index(row["site"]), row["head"]] = row["p_open"]
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
        axes.set_yticks(range(len(sites)), sites)
        axes.set(xlabel="head", title=f"P(open), epoch {now[0]['epoch']}")
        figure.colorbar(image)
        table = wandb.Table(columns=list(now[0]), data=[list(row.values()) for row in self.rows])
        self.followed.log({"gates/heads": table, "gates/heatmap": wandb.Image(figure)}, step)

    def on_preempted(self) -> None:
        """Let a sweep start this run again elsewhere."""
        self.followed.attempt({"the preemption": self.followed.run.mark_preempting})
