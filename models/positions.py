"""Sinusoidal position vectors, in the ways that libraries number and order them.

A position p has sin and cos of p * f_i for D / 2 frequencies f_i (Vaswani et al. 2017, section 3.5). Its
numbers may stand in turns or all sines first, and f_i is 10000^(-2i / D) as in the paper, or 10000^(-i / (D /
2 - 1)) as in the authors' tensor2tensor, fairseq and Marian.
"""

import math

import torch
from torch import Tensor

from headgates.configs.settings import ModelConfig


def frequencies(config: ModelConfig) -> Tensor:
    """(ceil(D / 2),) radians a position."""
    if config.positions == "tensor2tensor":
        return torch.exp(
            torch.arange(config.d_model // 2) * (-math.log(10000) / max(1, config.d_model // 2 - 1))
        )
    return torch.exp(torch.arange(0, config.d_model, 2) * (-math.log(10000) / config.d_model))


def waves(config: ModelConfig, positions: Tensor, frequencies: Tensor) -> Tensor:
    """The vectors (L, D) of positions (L,), where the first token has position 0."""
    angles = (positions + config.first_position)[:, None] * frequencies  # (L, ceil(D / 2))
    if config.positions == "sinusoidal":
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, : config.d_model]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def sinusoids(config: ModelConfig, length: int) -> Tensor:
    """The vectors (length, D) of the first positions."""
    return waves(config, torch.arange(length), frequencies(config))
