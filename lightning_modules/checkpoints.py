"""Checkpoints from which a stage goes on: written whole, and checked before they are used."""

import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from headgates.data.atomic_file import atomic_file
from headgates.data.ranks import world
from headgates.lightning_modules.stage_callback import StageCallback
from headgates.models.checkpoint import check_bytes, load_file, previous_checkpoint

RESUMED = {
    *("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks"),
    *("epoch", "global_step", "origin", "ranks"),
}


class WholeFiles(TorchCheckpointIO):
    """Lightning's checkpoints, written whole or not at all; the one before stays beside it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with atomic_file(path, previous=previous_checkpoint(path)) as file:
            torch.save(checkpoint, file)


def checkpoint_to_resume(stage: StageCallback, module: pl.LightningModule) -> str | None:
    """The path of the checkpoint to go on from: the last, or with a warning the one before where the last
    cannot be used; None where there is none. Raises ValueError, with what is wrong with the last, where there
    is none that can be used."""
    there = [path for path in (stage.last, stage.previous) if path.is_file()]
    wrong = [f"there is no {stage.last}"] if there[:1] == [stage.previous] else []
    for path in there:
        try:
            step = checked_step(path, stage, module)
        except ValueError as error:
            wrong.append(str(error))
            continue
        if wrong:
            warnings.warn(f"{wrong[0]}. Going on from {path.name}, after step {step}", stacklevel=2)
        return str(path)
    if wrong:
        raise ValueError(wrong[0])
    return None


def checked_step(path: Path, stage: StageCallback, module: pl.LightningModule) -> int:
    """The number of optimiser steps after which a checkpoint was written. Raises ValueError where it is
    broken, of another run or stage, of another number of processes, or of another model."""
    check_bytes(path)
    content = load_file(path)
    if missing := sorted(RESUMED - content.keys()):
        raise stage.folder.foreign(path.name, f"it holds no {', '.join(missing)}")
    if content["origin"] != stage.origin:
        raise ValueError(
            f"{path} was written by {content['origin']}, and this is {stage.origin}; "
            "bring its own back, or begin again with --fresh"
        )
    if (ranks := len(content["ranks"])) != world():
        raise ValueError(
            f"{path} was written by {ranks} process{'es' * (ranks != 1)}, and now there are {world()}: order "
            "and "
            f"noise would be those of neither run; --resume with {ranks}, or begin again with --fresh"
        )
    saved, own = (
        {name: tensor.shape for name, tensor in state.items()}
        for state in (content["state_dict"], module.state_dict())
    )
    if saved != own:
        raise stage.folder.foreign(path.name, "its weights are not those of the model that is trained")
    return int(content["global_step"])
