"""A model in evaluation mode for a while, and its passes with the same noise."""

from collections.abc import Iterator
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
    """What a model draws at random in evaluation too (ViTMAE its mask, VITS its noise) is that of the seed;
    what others draw afterwards stays as it was."""
    devices = {each.device for each in model.parameters() if each.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
