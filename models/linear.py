"""Linear layers by the library that multiplies faster on this processor.

Torch takes MKL for products in fp32, which on an AMD processor uses half of the width of AVX-512. oneDNN,
which torch has for bf16, uses all of it, and takes 0.44 to 0.6 of the time (LOG.md). Torch's product by
oneDNN has no gradient, so it is taken where none is wanted.

oneDNN prepares a product for each number of rows (0.3 ms) and keeps it (0.6 MB). Numbers of rows are rounded
up, so that they come again as sentences leave a batch, and its caches are bounded. Letters: M rows, I inputs,
O outputs.
"""

import os
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Entries that each cache of prepared products may have, oneDNN's own and torch's above it (LOG.md). Both are
# read at the first product.
CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
LEAST_ROWS, LEAST_PRODUCT = 16, 2_000_000  # below these rows, or multiply-adds, MKL is as fast
STEPS = 16  # equal steps from one power of 2 to the next, to which a number of rows is rounded


class Linear(nn.Linear):
    """nn.Linear by `product`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b, (..., O), for x (..., I), W (O, I) and b (O,): F.linear, by oneDNN where that is
    faster."""
    # exporters trace what torch itself defines; autocast would not see the product
    if (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    rows = x.numel() // max(1, x.shape[-1])
    if (
        rows < LEAST_ROWS
        or rows * weight.numel() < LEAST_PRODUCT
        or not (onednn_is_faster() and plain(x) and plain(weight))
    ):
        return F.linear(x, weight, bias)
    rounded = round_up(rows)
    if rounded == rows:
        return onednn(x, weight, bias)
    padded = x.new_zeros(rounded, x.shape[-1])
    padded[:rows] = x.reshape(rows, -1)
    return onednn(padded, weight, bias)[:rows].view(*x.shape[:-1], -1)


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def plain(x: Tensor) -> bool:
    """Return whether it is a tensor of fp32 numbers in the CPU's memory, and of no class that watches or
    replaces torch's operations."""
    return type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.dtype == torch.float32


def round_up(rows: int) -> int:
    """Return the next number of rows of which STEPS stand between one power of 2 and the next, and which is a
    multiple of STEPS."""
    step = max(STEPS, (1 << (rows - 1).bit_length()) // (2 * STEPS))
    return -(-rows // step) * step


@cache
def onednn_is_faster() -> bool:
    """Return whether this is a processor on which oneDNN's fp32 products were measured to be faster, and
    torch has them.

    Bounds oneDNN's caches if it is, before anything is in them."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or processor_vendor() != "AuthenticAMD":
        return False
    bound_caches()
    return True


def processor_vendor() -> str:
    """Return the vendor's name as Linux gives it, or "" where it gives none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def bound_caches() -> None:
    """Let the caches of prepared products keep few entries, unless the user's environment says how many. To
    be called before the process multiplies its first matrices: later it changes nothing."""
    for name, entries in CACHES.items():
        os.environ.setdefault(name, entries)
