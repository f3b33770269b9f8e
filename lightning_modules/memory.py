"""Memory stays bounded while a model trains on a CPU.

Hardly two batches have the same shape, so what one step frees does not fit the tensors of the next, and
glibc's heap grows by gaps that it keeps. `malloc_trim` returns the pages of all gaps; the next step gets
those that it needs from the system again. In bf16, oneDNN and torch also keep what they prepared for each
shape of a product, up to 1,024 of each, which no trim returns: 13 MB with each new shape of a batch
(models/linear.py bounds them).
"""

import ctypes
import sys
from typing import Any

import pytorch_lightning as pl

# batches. To give back and to get anew costs about half of a small step, which is 2% of so many (LOG.md)
EVERY = 30


def release_memory() -> bool:
    """Return freed memory to the system. False where none was left to return, or the C library cannot: it is
    not glibc's."""
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


class ReleaseMemory(pl.Callback):
    """Returns freed memory to the system every EVERY batches and after each validation. On a GPU, tensors are
    not in this memory."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        if (index + 1) % EVERY == 0 and module.device.type == "cpu":
            release_memory()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if module.device.type == "cpu":
            release_memory()
