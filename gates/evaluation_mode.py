"""A model in evaluation mode for a while, and its passes with the same noise."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module of the model in evaluation mode; afterwards each is in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def same_noise(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """What a model draws at random in evaluation too (ViTMAE its mask, VITS its noise) is that of the
    seed."""
    with seeded({each.device for each in model.parameters()}, seed):
        yield


@contextmanager
def seeded(devices: Collection[torch.device], seed: int) -> Iterator[None]:
    """What is drawn on the CPU and on these devices is that of the seed; what is drawn afterwards, there and
    elsewhere, stays as it was."""
    cuda = [each for each in devices if each.type == "cuda"]
    mps = torch.mps.get_rng_state() if any(each.type == "mps" for each in devices) else None
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed reaches every device
        for device in cuda:
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(seed)
        if mps is not None:
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)
