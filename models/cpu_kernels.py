"""The products, softmax, dropout and top-k of the model, by what is fastest on this processor.

Everything here computes what one line of torch computes, and says which: no other file of the room chooses
between kernels. On a GPU torch's own are taken. Times are in LOG.md. Letters: B batch, H heads, K head width,
L query and S key positions; M rows, I inputs, O outputs of a linear layer.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VECTOR = 16  # numbers that a CPU of today adds at once
SMALL_PRODUCT = 400  # multiply-adds below which torch takes plain loops for each of a batch of products
LONGEST = 512  # query positions up to which two products and a softmax are faster than the fused kernel
CHUNK_WIDTH = 128  # numbers of a chunk of `top`
# of prepared products, oneDNN's own and torch's above it; torch reads both at the first product
CACHES = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
FEW_PRODUCTS = 16  # entries of each where a model is only read
# where one may train in bf16: batches have some 30 shapes, and each prepares about ten products (LOG.md)
TRAINING_PRODUCTS = 512
LEAST_ROWS, LEAST_PRODUCT = 16, 2_000_000  # below these rows, or multiply-adds, MKL is as fast
ROUNDING_STEPS = 16  # equal steps from one power of 2 to the next, to which a number of rows is rounded


# ---------------------------------------------------------------- dropout


class Dropout(nn.Module):
    """Zero each unit with probability p (rounded to 1/256 on a CPU) and scale the rest by 1 / (1 - p);
    nothing in evaluation. The scale uses the rounded probability, so the expectation is exact."""

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"expected a dropout probability in [0, 1), got {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        threshold = min(round(self.p * 256), 255)  # of 256 equally likely draws, those below it are zeroed
        if not self.training or threshold == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * keep_mask(x.shape, threshold, x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def change_dropout(model: nn.Module, p: float) -> None:
    """Give every dropout of a model that has a probability above 0 this one. Raises ValueError where there is
    none, and p is above 0."""
    changed = [m for m in model.modules() if isinstance(m, Dropout | nn.Dropout) and m.p > 0]
    if p and not changed:
        raise ValueError(
            f"finetune.dropout {p:g}: the model was made without dropout, so there is none to change; "
            "leave it out"
        )
    for module in changed:
        module.p = p


def keep_mask(shape: torch.Size, threshold: int, dtype: torch.dtype) -> Tensor:
    """A tensor of `shape`: 0 with probability threshold / 256, else 256 / (256 - threshold).

    bernoulli_ draws one double for every unit; here eight units share a 64-bit random number, a byte each."""
    n = shape.numel()
    # the full signed range: the default draws 63 bits, and every eighth byte would stay below 128
    draws = torch.empty((n + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    # 1 from the threshold on, else 0: a comparison gives booleans, which are converted number by number
    keep = draws.view(torch.uint8)[:n].view(shape).clamp_(threshold - 1, threshold).sub_(threshold - 1)
    return keep.to(dtype).mul_(256 / (256 - threshold))


# ---------------------------------------------------------------- attention


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    dropout: Dropout,
    keep: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """z = softmax(q k^T / sqrt(K) + bias) v, (B, H, L, K). keep: called with the weights (B, H, L, S).

    F.scaled_dot_product_attention, whose backward pass is slow on a CPU for sentences: there two batched
    products and a softmax are taken."""
    if keep is not None or (q.device.type == "cpu" and q.shape[2] <= LONGEST):
        weights = attention_weights(q * q.shape[-1] ** -0.5, keys, bias)  # (B, H, L, S)
        if keep is not None:
            keep(weights)
        return mixture(dropout(weights), values)
    mask = None if bias is None else bias.to(q.dtype)
    p = dropout.p if dropout.training else 0.0
    return F.scaled_dot_product_attention(q, keys, values, mask, dropout_p=p)


def attention_weights(q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q k^T + bias) over the keys, (B, H, L, S).

    A softmax over a last dimension shorter than a vector goes number by number, over another one over many
    columns at once; so short rows are transposed first."""
    if q.device.type != "cpu" or keys.shape[2] >= VECTOR:
        scores = torch.matmul(q, keys.transpose(-1, -2))
        return torch.softmax(scores if bias is None else scores + bias, dim=-1)
    if q.shape[2] == 1 and bias is None:  # in a step of search
        scores = torch.matmul(q, keys.transpose(-1, -2)).flatten(0, 2).t().contiguous()  # (S, B * H)
        return torch.softmax(scores, dim=0).t().view(*q.shape[:3], -1)
    scores = torch.matmul(keys, q.transpose(-1, -2))  # (B, H, S, L)
    if bias is not None:
        scores = scores + bias.transpose(-1, -2).to(scores.dtype)
    # autocast would copy bf16 scores to fp32 and back, though a softmax's sums are fp32 anyway
    with torch.autocast(q.device.type, enabled=False):
        return torch.softmax(scores, dim=-2).transpose(-1, -2)


def mixture(weights: Tensor, values: Tensor) -> Tensor:
    """weights @ values: (B, H, L, K) of weights (B, H, L, S) and values (B, H, S, K)."""
    small = values.shape[2] * values.shape[3] < SMALL_PRODUCT
    if weights.device.type == "cpu" and weights.shape[2] == 1 and small:
        return (weights.transpose(2, 3) * values).sum(2, keepdim=True)
    return torch.matmul(weights, values)


# ---------------------------------------------------------------- linear layers


class Linear(nn.Linear):
    """nn.Linear by `product`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear: x W^T + b, (..., O), for x (..., I), W (O, I) and b (O,).

    Torch takes MKL for fp32, which on an AMD processor uses half of the width of AVX-512. oneDNN uses all of
    it and takes 0.44 to 0.6 of the time, but torch's product by it has no gradient. It prepares a product for
    each number of rows (0.3 ms, 0.6 MB), so these are rounded up to numbers that come again."""
    # exporters trace what torch itself defines; autocast would not see the product
    if (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    rows = x.numel() // max(1, x.shape[-1])
    large = rows >= LEAST_ROWS and rows * weight.numel() >= LEAST_PRODUCT
    if not (large and onednn_is_faster() and is_plain_float(x) and is_plain_float(weight)):
        return F.linear(x, weight, bias)
    rounded = round_up(rows)
    if rounded == rows:
        return onednn(x, weight, bias)
    padded = x.new_zeros(rounded, x.shape[-1])
    padded[:rows] = x.reshape(rows, -1)
    return onednn(padded, weight, bias)[:rows].view(*x.shape[:-1], -1)


def in_product_type(x: Tensor) -> Tensor:
    """x in the type that products take under autocast, which would else convert it for each of them; x itself
    elsewhere, and in float64, which autocast leaves alone."""
    device = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return x.to(torch.get_autocast_dtype(device))
    return x


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def is_plain_float(x: Tensor) -> bool:
    """Whether it is fp32 in the CPU's memory, and of no class that watches or replaces torch's operations."""
    return type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.dtype == torch.float32


def round_up(rows: int) -> int:
    """The next number of rows of which ROUNDING_STEPS stand between one power of 2 and the next, and which is
    a multiple of ROUNDING_STEPS."""
    step = max(ROUNDING_STEPS, (1 << (rows - 1).bit_length()) // (2 * ROUNDING_STEPS))
    return -(-rows // step) * step


@cache
def onednn_is_faster() -> bool:
    """Whether this processor was measured to be faster with oneDNN's fp32 products, and torch has them.
    Bounds oneDNN's caches if so, before anything is in them."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or processor_vendor() != "AuthenticAMD":
        return False
    bound_caches(FEW_PRODUCTS)
    return True


def processor_vendor() -> str:
    """The vendor's name as Linux gives it, or "" where it gives none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def bound_caches(entries: int) -> None:
    """Let each cache of prepared products keep so many, unless the user's environment says how many. To be
    called before the process multiplies its first matrices: later it changes nothing."""
    for name in CACHES:
        os.environ.setdefault(name, str(entries))


# ---------------------------------------------------------------- the largest of long rows


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """x.topk(k): the k largest numbers of every row of x (R, n), largest first, and their positions, (R, k).

    A single one is the first of equal numbers, as torch.max has it; of several equal ones any may come. Only
    the k chunks with the largest maxima, and the row's end, can hold them: a third of torch.topk's time."""
    rows, n = x.shape
    chunks = n // CHUNK_WIDTH
    if x.device.type != "cpu" or chunks <= k:
        return largest_by_torch(x, k)
    parts = x[:, : chunks * CHUNK_WIDTH].unflatten(1, (chunks, CHUNK_WIDTH))  # (R, chunks, CHUNK_WIDTH)
    chosen = largest_by_torch(parts.amax(2), k)[1]  # (R, k)
    position = chosen[:, :, None] * CHUNK_WIDTH + torch.arange(CHUNK_WIDTH)  # (R, k, CHUNK_WIDTH)
    rest = torch.arange(chunks * CHUNK_WIDTH, n).expand(rows, -1)
    position = torch.cat([position.flatten(1), rest], dim=1)
    values, found = largest_by_torch(x.gather(1, position), k)
    return values, position.gather(1, found)


def largest_by_torch(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, positions = x.topk(k) if k > 1 else x.max(1, keepdim=True)
    return values, positions
