"""One training stage, from a translator to its best checkpoint: base, gates, importance:trained and
base-continued all go through here."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import DDPStrategy, Strategy

from headgates.configs.stages import StageConfig
from headgates.data.corpus import TranslationData
from headgates.data.ranks import wait
from headgates.lightning_modules.checkpoints import WholeFiles, checkpoint_to_resume
from headgates.lightning_modules.convergence import is_converged
from headgates.lightning_modules.held_signals import HeldSignals
from headgates.lightning_modules.loggers import make_loggers
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.sharding import Sharded
from headgates.lightning_modules.stage_bar import StageBar
from headgates.lightning_modules.stage_callback import StageCallback, StageFolder, Watcher
from headgates.lightning_modules.stage_data import StageData
from headgates.lightning_modules.stage_log import StageLog
from headgates.models.checkpoint import load_file


@dataclass(frozen=True)
class Machine:
    """Where and how to train."""

    devices: int  # of each node
    precision: str  # "32" or "bf16"
    logger: str
    checkpoint_minutes: float = 5.0
    checkpoint_steps: int = 0
    nodes: int = 1
    strategy: str = "ddp"  # or "fsdp"

    def __post_init__(self) -> None:
        if self.strategy == "fsdp" and self.ranks == 1:
            raise ValueError(
                "--strategy fsdp shares out one model over processes, and there is one; start more, or leave "
                "it out"
            )

    @property
    def ranks(self) -> int:
        return self.devices * self.nodes


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


def run_stage(
    name: str,
    module: StageModule,
    data: TranslationData,
    folder: StageFolder,
    machine: Machine,
    stage: StageConfig,
    *,
    prefix: str = "",
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    loggers: Sequence[Logger] = (),
) -> StageResult:
    """Train, keep the best, and leave the best weights in the module's model.

    Files in the run folder begin with `prefix`. `resume` goes on from the last checkpoint if there is one.
    loggers: where numbers go beside metrics.csv and TensorBoard."""
    signals = HeldSignals()
    state = StageCallback(
        folder,
        module,
        stage=name,
        prefix=prefix,
        minutes=machine.checkpoint_minutes,
        steps=machine.checkpoint_steps,
        signals=signals,
        watchers=watchers,
    )
    log = StageLog(name, data.sampler(world=machine.ranks).steps)
    callbacks = [state, *watchers, log, StageBar(name), signals]
    quiet_lightning()
    trainer = pl.Trainer(
        accelerator="auto",
        devices=machine.devices,
        num_nodes=machine.nodes,
        strategy=strategy(machine, gated=module.gating is not None),
        precision="bf16-mixed" if machine.precision == "bf16" else "32-true",
        max_epochs=stage.epochs,
        accumulate_grad_batches=stage.accumulate,
        callbacks=callbacks,
        plugins=[WholeFiles()],
        logger=make_loggers(machine.logger, folder.path, name, loggers),
        default_root_dir=folder.path,
        log_every_n_steps=0,  # training rows are logged by StageModule
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,  # StageBar is ours
    )
    again = checkpoint_to_resume(state, module) if resume else None
    module.train()  # a loaded model is in evaluation mode, which would shut dropout and gate noise off
    try:
        trainer.fit(module, datamodule=StageData(data), ckpt_path=again, weights_only=True)
    except SystemExit as stop:  # what Lightning makes of an interrupt
        raise KeyboardInterrupt from stop
    if module.stopped:
        warnings.warn(module.stopped, stacklevel=2)
    best = f"{prefix}best.pt"
    wait()  # for the first rank to have written it
    load_best(module, folder, best)
    wait()  # until all have read it: it may be removed next
    state.previous.unlink(missing_ok=True)  # of a finished stage the last one is enough
    return StageResult(
        weights=best,
        epochs=len(state.losses),
        steps=trainer.global_step,
        best_epoch=state.best_epoch,
        losses=state.losses,
        converged=is_converged(state.eligible_losses),
        seconds=state.seconds,
        tokens_per_second=state.tokens / max(state.seconds, 1e-9),
        stopped=module.stopped,
        settled=module.gating.binarised_step if module.gating else None,
    )


def strategy(machine: Machine, *, gated: bool) -> Strategy | str:
    """How several ranks share a stage: gates that stand at 0 or 1 get no gradient, which DDP must be told to
    look for."""
    if machine.strategy == "fsdp":
        return Sharded()
    return DDPStrategy(find_unused_parameters=gated) if machine.ranks > 1 else "auto"


def load_best(module: StageModule, folder: StageFolder, best: str) -> None:
    """Put the best checkpoint's weights, and gates where it has them, into the module's model. Raises
    ValueError where they do not fit."""
    content = load_file(folder / best)
    try:
        module.model.load_state_dict({**content["model"], **content["gates"]})
    except (KeyError, TypeError, RuntimeError) as error:
        raise folder.foreign(
            best, f"its weights are not those of the stage ({' '.join(str(error).split())[:200]})"
        ) from error
    module.model.eval()


def freeze_decoder(model: torch.nn.Module) -> None:
    """Voita et al.'s encoder-only experiment: what is trained is the encoder, the source embeddings and the
    gates. Embeddings that the decoder shares (tied ones) stay as they are, for with them the decoder would
    change."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not name.startswith(("encoder.", "source_embedding.", "source_positions.", "head_gates.")):
            parameter.requires_grad_(False)


def quiet_lightning() -> None:
    """Keep Lightning's advice on data-loader workers and its device report out of the user's terminal."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    for text in (
        ".*does not have many workers.*",
        ".*Consider setting `persistent_workers.*",
        ".*srun.*",
        ".*isinstance.treespec.*",
        ".*dataloader is not resumable.*",
    ):
        warnings.filterwarnings("ignore", text)
