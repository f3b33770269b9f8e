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
    """Holds the first such signal back, for who reads it: `heard` is its number, and `re_raise` gives it to
    the handler that was there before. In training the step is saved first; in validation nothing is. A second
    one goes to that handler at once. Ignored signals stay ignored.

    What a handler raises in a destructor is lost, so a signal stays `heard` until `re_raise`."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self.waits = False
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
            return

        def hold(signum: int, frame: FrameType | None) -> None:
            first, self.heard = self.heard is None, signum
            if not first:
                self.before[signum](signum, frame)

        for signum in (getattr(signal, name) for name in ENDING if hasattr(signal, name)):
            if callable(signal.getsignal(signum)):  # ignored, or nobody's: as before
                self.before[signum] = signal.signal(signum, hold)

    def re_raise(self) -> None:
        """Let the signal that was held back do what it does. Raises KeyboardInterrupt where it ends nothing:
        another process of the same training heard it."""
        signum, self.heard = self.heard, None
        self.restore()
        if signum is not None:
            signal.raise_signal(signum)
        raise KeyboardInterrupt

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """A signal heard in the last step of an epoch waits for the epoch's end, which saves the step."""
        self.waits = self.heard is not None

    def in_validation(self, *_: Any, **__: Any) -> None:
        if self.heard is not None and not self.waits:
            self.re_raise()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """A signal heard after the last epoch still ends the program."""
        self.restore()
        if self.heard is not None:
            self.re_raise()

    def restore(self, *_: Any, **__: Any) -> None:
        """Bring the handlers back that were there before."""
        for signum, handler in self.before.items():
            signal.signal(signum, handler)
        self.before.clear()

    on_validation_batch_start = on_validation_batch_end = in_validation
    on_exception = restore
