"""A batch on the device of the model that reads it."""

from typing import Any

import torch


def on_device(batch: Any, device: torch.device | str | int | None) -> Any:
    """The batch with its tensors on the device; None leaves them where they are.

    A batch is a tensor, a dict, list or tuple of such, or what has a method `to` of its own; anything else
    stays as it is."""
    if device is None:
        return batch
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: on_device(each, device) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [on_device(each, device) for each in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch
