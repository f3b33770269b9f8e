"""Positions: sinusoidal vectors, in the ways that libraries number and order them, and biases by distance.

A position p has sin and cos of p * f_i for D / 2 frequencies f_i (Vaswani et al. 2017, section 3.5). Its
numbers may stand in turns or all sines first, and f_i is 10000^(-2i / D) as in the paper, or 10000^(-i / (D /
2 - 1)) as in the authors' tensor2tensor, fairseq and Marian.

With relative positions (Raffel et al. 2020, arXiv:1910.10683, section 2.1) nothing is added to embeddings.
Every head of self-attention has a number for each bucket of distances, which is added to its scores: near
distances have buckets of their own, far ones share them in logarithmic steps, and from the reach on all are
one.   Letters: H heads, L query positions, S key positions, D model width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class DistanceBias(nn.Embedding):
    """The numbers (buckets, H) of one attention; heads that are removed take their column with them.

    causal: keys are never after the query, so buckets are of earlier distances alone."""

    def __init__(self, config: ModelConfig, heads: int, *, causal: bool):
        super().__init__(config.position_buckets, heads)
        self.reach, self.causal = config.position_reach, causal

    def forward(self, queries: int, keys: int, start: int = 0) -> Tensor:  # type: ignore[override]
        """(H, L, S) for queries at positions from `start` on and keys at those from 0 on."""
        device = self.weight.device
        asked = torch.arange(start, start + queries, device=device)
        distance = torch.arange(keys, device=device) - asked[:, None]  # (L, S)
        return F.embedding(self.buckets(distance), self.weight).permute(2, 0, 1)

    def buckets(self, distance: Tensor) -> Tensor:
        """The bucket of each distance, key position minus query position, in the same shape."""
        count, first = self.num_embeddings, 0 * distance
        if self.causal:
            distance = -distance.clamp(max=0)
        else:
            count //= 2
            first, distance = count * (distance > 0), distance.abs()
        exact = count // 2  # distances below it have a bucket each
        steps = torch.log(distance.float() / exact) / math.log(self.reach / exact) * (count - exact)
        far = (exact + steps.clamp(min=0).long()).clamp(max=count - 1)  # log 0 is -inf
        return first + torch.where(distance < exact, distance, far)
