"""What a stage of training writes to, and how it went. Nothing here imports Lightning."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headgates.models.checkpoint import load_file


@dataclass(frozen=True)
class StageResult:
    """How a stage went. `weights`: the file of its best checkpoint in the run folder."""

    weights: str
    epochs: int
    steps: int
    best_epoch: int
    losses: list[float]  # full-validation loss, epoch by epoch
    converged: bool | None  # see `is_converged`
    seconds: float
    tokens_per_second: float
    stopped: str | None
    settled: int | None = None  # optimiser steps taken when the stage's gates became exact

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "losses": [round(loss, 5) for loss in self.losses]}

    def then(self, later: "StageResult") -> "StageResult":
        """Of this stage, in which gates learned, and of one that went on without them, as of one."""
        seconds = self.seconds + later.seconds
        tokens = self.tokens_per_second * self.seconds + later.tokens_per_second * later.seconds
        return replace(
            later,
            epochs=self.epochs + later.epochs,
            steps=self.steps + later.steps,
            best_epoch=self.epochs + later.best_epoch,
            losses=[*self.losses, *later.losses],
            seconds=seconds,
            tokens_per_second=tokens / max(seconds, 1e-9),
            settled=self.steps,
        )


class StageFolder(Protocol):
    """What a stage needs of the folder that it writes to; a run folder has it."""

    @property
    def path(self) -> Path: ...

    def __truediv__(self, name: str) -> Path:
        """A file of the folder."""
        ...

    def run_hash(self) -> str | None:
        """The hash of what the run is made from, which its checkpoints carry."""
        ...

    def foreign(self, name: str, why: str) -> ValueError:
        """The error for a file that holds something else than a stage writes."""
        ...


def load_best(model: Any, folder: StageFolder, best: str) -> None:
    """Put the best checkpoint's weights, and gates where it has them, into the model of a stage. Raises
    ValueError where they do not fit."""
    content = load_file(folder / best)
    try:
        model.load_state_dict({**content["model"], **content["gates"]})
    except (KeyError, TypeError, RuntimeError) as error:
        raise folder.foreign(
            best, f"its weights are not those of the stage ({' '.join(str(error).split())[:200]})"
        ) from error
    model.eval()
