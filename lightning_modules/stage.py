"""One training stage, from a translator to its best checkpoint: base, gates, training and
base-continued all go through here."""

import logging
import warnings
from collections.abc import Sequence

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import nn

from headgates.configs.settings import Settings
from headgates.data.corpus import TranslationData
from headgates.data.ranks import wait
from headgates.gates import ALL_KINDS, find_sites
from headgates.lightning_modules.checkpoints import WholeFiles, checkpoint_to_resume
from headgates.lightning_modules.convergence import is_converged
from headgates.lightning_modules.held_signals import HeldSignals
from headgates.lightning_modules.loggers import Log, make_loggers
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.sharding import Sharded
from headgates.lightning_modules.stage_bar import StageBar
from headgates.lightning_modules.stage_callback import StageCallback, Watcher
from headgates.lightning_modules.stage_data import StageData
from headgates.lightning_modules.stage_log import StageLog
from headgates.lightning_modules.stage_record import StageFolder, StageResult, load_best


def run_stage(
    name: str,
    module: StageModule,
    data: TranslationData,
    folder: StageFolder,
    settings: Settings,
    *,
    prefix: str = "",
    watchers: Sequence[Watcher] = (),
    log: Log = lambda *row: None,
) -> StageResult:
    """Train, keep the best, and leave the best weights in the module's model.

    Files in the run folder begin with `prefix`. settings: on which processes and in which precision, 32 or
    bf16; with `resume` the stage goes on from its last checkpoint if there is one. log: called with
    each row of metrics.csv: the stage, the numbers and the step."""
    signals = HeldSignals()
    state = StageCallback(
        folder,
        module,
        settings,
        stage=name,
        prefix=prefix,
        signals=signals,
        watchers=watchers,
    )
    log_lines = StageLog(name, data.sampler(world=settings.ranks).steps)
    callbacks = [state, *watchers, log_lines, StageBar(name), signals]
    module.bf16 = settings.precision == "bf16"
    quiet_lightning()
    trainer = pl.Trainer(
        # as the rest does; a Mac's GPU has no float64
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=strategy(settings, unused=module.gating is not None or has_empty(module.model)),
        precision="bf16-mixed" if module.bf16 else "32-true",
        max_epochs=module.stage.epochs,
        accumulate_grad_batches=module.stage.accumulate,
        callbacks=callbacks,
        plugins=[WholeFiles()],
        logger=make_loggers(settings.logger, folder.path, name, log),
        default_root_dir=folder.path,
        log_every_n_steps=0,  # training rows are logged by StageModule
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,  # StageBar is ours
    )
    again = checkpoint_to_resume(state, module) if settings.resume else None
    module.train()  # a loaded model is in evaluation mode, which would shut dropout and gate noise off
    try:
        trainer.fit(module, datamodule=StageData(data), ckpt_path=again, weights_only=True)
    except SystemExit as stop:  # what Lightning makes of an interrupt
        raise KeyboardInterrupt from stop
    if module.stopped:
        warnings.warn(module.stopped, stacklevel=2)
    best = f"{prefix}best.pt"
    wait()  # for the first rank to have written it
    load_best(module.model, folder, best)
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


def has_empty(model: nn.Module) -> bool:
    """Whether some attention has lost all heads, or some feed-forward layer all neurons."""
    return not all(site.heads for site in find_sites(model, ALL_KINDS))


def strategy(settings: Settings, *, unused: bool) -> Strategy | str:
    """How several ranks share a stage. unused: whether some parameters may get no gradient, for which DDP
    then looks: gates that stand at 0 or 1, and the norm before a site without heads. Raises
    ValueError where there is nobody to share with."""
    if settings.strategy == "fsdp":
        if settings.ranks == 1:
            raise ValueError(
                "--strategy fsdp shares out one model over processes, and there is one; start more, or leave "
                "it out"
            )
        return Sharded()
    return DDPStrategy(find_unused_parameters=unused) if settings.ranks > 1 else "auto"


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
