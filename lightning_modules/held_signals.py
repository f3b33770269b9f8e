"""Ctrl-C, a kill and the signals of a scheduler wait until an optimiser step has ended and what it made is on
the disk."""

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl

ENDING = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGUSR1",
)  # the last is what SLURM sends for --signal=USR1@120; Windows has the first two alone


class HeldSignals(pl.Callback):
    """Holds the first such signal of a training step back, for who saves the step: `heard` is its number, and
    `re_raise` gives it to the handler that was there before. A second one, and one during validation, goes
    to that handler at once. Ignored signals stay ignored."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
            return

        def hold(signum: int, frame: FrameType | None) -> None:
            if self.heard is None and not trainer.validating:
                self.heard = signum
            else:
                self.re_raise(signum)

        for signum in (getattr(signal, name) for name in ENDING if hasattr(signal, name)):
            if callable(signal.getsignal(signum)):  # ignored, or nobody's: as before
                self.before[signum] = signal.signal(signum, hold)

    def re_raise(self, signum: int | None = None) -> None:
        """Let the signal that was held back, or the given one, do what it does. Raises KeyboardInterrupt
        where it ends nothing: another process of the same training heard it."""
        signum, self.heard = self.heard if signum is None else signum, None
        self.restore()
        if signum is not None:
            signal.raise_signal(signum)
        raise KeyboardInterrupt

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.heard is not None:  # heard in the last step of an epoch, whose end may be minutes away
            self.re_raise()

    def restore(self, *_: Any, **__: Any) -> None:
        """Bring the handlers back that were there before."""
        for signum, handler in self.before.items():
            signal.signal(signum, handler)
        self.before.clear()

    on_train_end = on_exception = restore
