"""The batches of a task as Lightning's Trainer asks for them: each rank's own, from the step at which a run
resumes."""

from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from headgates.data.batch import Batch
from headgates.data.corpus import TranslationData


class StageData(pl.LightningDataModule):
    trainer: Any

    def __init__(self, data: TranslationData) -> None:
        super().__init__()
        self.data = data

    def train_dataloader(self) -> DataLoader[Batch]:
        loop, first_step = self.trainer.fit_loop, 0
        if loop.restarting:  # in the middle of this epoch
            first_step = loop.epoch_loop.batch_progress.current.ready // self.data.accumulate
        return self.data.train_dataloader(
            epoch=self.trainer.current_epoch, first_step=first_step, **self.ranks()
        )

    def val_dataloader(self) -> DataLoader[Batch]:
        return self.data.val_dataloader(**self.ranks())

    def ranks(self) -> dict[str, int]:
        return {"world": self.trainer.world_size, "rank": self.trainer.global_rank}
