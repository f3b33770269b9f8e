"""Which precision trains faster on this machine: measured, since a CPU that has bf16 may still be slower in
it."""

import time
from functools import cache

import torch
import torch.nn.functional as F

from headgates.data import ranks

MARGIN = 1.2  # a training step is more than products, so bf16 must win these clearly


def resolve_precision(precision: str) -> str:
    """'32' or 'bf16'. auto: bf16 on GPUs from Ampere on, and on CPUs whose bf16 products were timed faster
    here. Every process of a run takes what the first one measured."""
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "32"
    return ranks.first(lambda: "bf16" if bf16_gain() > MARGIN else "32")


@cache
def bf16_gain() -> float:
    """How many times as fast as in fp32 a product and its two gradients are in bf16, at a small model's
    sizes."""
    small = product_seconds(torch.float32, 128) / product_seconds(torch.bfloat16, 128)
    if small < 0.2:  # emulated: the sizes below would take seconds
        return small
    pairs = [(product_seconds(torch.float32), product_seconds(torch.bfloat16)) for _ in range(7)]
    fp32, bf16 = (
        min(seconds) for seconds in zip(*pairs, strict=True)
    )  # interleaved; the least is the undisturbed
    return fp32 / bf16


def product_seconds(dtype: torch.dtype, tokens: int = 2048, width: int = 256) -> float:
    x, w = torch.ones(tokens, width, dtype=dtype), torch.ones(2 * width, width, dtype=dtype)
    start = time.perf_counter()
    y = F.linear(x, w)  # (tokens, 2 width)
    _ = y @ w, y.t() @ x
    return time.perf_counter() - start
