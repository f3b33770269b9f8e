"""Gates in a LightningModule of one's own.

trainer = pl.Trainer(callbacks=[hg.lightning.HeadGates(heads=24, save="pruned")])
trainer.fit(module, loader)          # afterwards the module has 24 heads
"""

import math
from typing import Any

import torch
from torch import nn

from headgates.gates import detach
from headgates.gates.pruned_folder import is_hugging_face

from .callback import GateCallback

try:
    import pytorch_lightning as pl
except ImportError as error:
    raise ImportError(
        f"hg.lightning needs pytorch-lightning ({error}): pip install 'headgates[train]', in a checkout pip "
        "install '.[train]'",
        name=error.name,
    ) from None


class HeadGates(GateCallback, pl.Callback):
    """A callback of Lightning's Trainer that learns which heads and neurons stay, and removes the others
    after `fit`. Options, and what it has afterwards: `GateCallback`.

    Gates are those of the Hugging Face model in the module if there is one, else of the module. Checkpoints
    hold them: a training that is resumed from one goes on as if it had never stopped. Raises ValueError at a
    strategy other than DDP on several devices, and at a callback before this one that averages weights."""

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(trainer, pl.Trainer):
            raise ValueError(
                f"this is a Trainer of the package {type(trainer).__module__.partition('.')[0]}, and "
                "HeadGates a callback of pytorch_lightning: import pytorch_lightning as pl, and take "
                "pl.Trainer and pl.LightningModule"
            )
        known = pl.strategies.SingleDeviceStrategy, pl.strategies.DDPStrategy
        if not isinstance(trainer.strategy, known):
            raise ValueError(
                "HeadGates trains on one device or on several by DDPStrategy, not with "
                f"{type(trainer.strategy).__name__}"
            )
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks[: callbacks.index(self)]:
            if hasattr(callback, "_average_model"):
                raise ValueError(
                    f"{type(callback).__name__} has copied the model already, without gates: give "
                    f"callbacks=[HeadGates(...), {type(callback).__name__}(...)], in this order"
                )
        try:
            self.put_on(gated_part(module), seed=torch.initial_seed())
        except ValueError as error:
            cls, plain = type(module), pl.LightningModule
            if (cls.configure_model, cls.setup) == (plain.configure_model, plain.setup):
                raise
            raise ValueError(
                f"{error}. What {cls.__name__} makes in configure_model or setup is not there yet when its "
                "callbacks are set up: make the model in __init__"
            ) from error
        # DistributedDataParallel would wait for gradients that are taken out
        own = set(self.bank.parameters())
        names = [name for name, parameter in module.named_parameters() if parameter in own]
        module._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        steps = trainer.estimated_stepping_batches  # -1 or infinite where nobody knows
        if math.isfinite(steps) and steps > 0:
            self.begin(steps)
        elif self.warmup is not None and not self.settle:
            self.begin(math.inf)
        else:
            detach(gated_part(module))
            self.model = None
            raise ValueError(
                "Lightning does not know how many steps this training has, of which HeadGates takes 30% to "
                "close gates and 30% to settle: give Trainer(max_steps=...), or HeadGates(warmup=..., "
                "settle=0)"
            )

    def on_train_batch_start(self, *_: Any) -> None:
        self.gates.sample()
        self.has_stepped = False

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        if not self.has_stepped:  # of several optimizers each comes here in a batch
            self.has_stepped = True
            self.before_step(getattr(trainer.precision_plugin, "scaler", None))

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.end()  # not where training ends: averaged weights are put into the model there

    def state_dict(self) -> dict[str, Any]:
        return self.gates.state_dict() if self.model is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self.model is not None:
            self.gates.load_state_dict(state)


def gated_part(module: nn.Module) -> nn.Module:
    """The Hugging Face model in a module, where there is one; else the module."""
    inside = [part for part in module.modules() if is_hugging_face(part)]
    outermost = inside[0] if inside else module
    return outermost if all(part in set(outermost.modules()) for part in inside) else module
