"""A pass whose attention weights, gates and norm scales are constants: what is left of a Transformer is
linear between its activations.

    with LinearPass():
        logit = model(...)          # the same numbers
    torch.autograd.grad(logit, z)   # as if softmax and the norms' standard deviations were given numbers

Gradient times input is then conserved from layer to layer, which makes it a rule of layer-wise relevance
propagation: Ali et al. 2022 (arXiv:2202.07304). It works on any model, since it changes torch's functions and
not the model: inside,

    softmax, scaled_dot_product_attention     the weights get no gradient, so none goes to queries and keys
    layer_norm, rms_norm                      the scale gets none; the mean that a layer norm takes off is a
                                              sum like any other, and does
    sigmoid                                   no gradient: forget gates of recurrent units, and a swish that
                                              a model writes out
    gelu, silu, tanh                          y = f(x) is x times the constant y / x, as ReLU's is 0 or 1
    x times (1 + tanh(...))                   a GELU that a model writes out: the second factor is a constant
    y times as many other numbers             in a gated feed-forward layer: y is the gate, a constant
    rsqrt, sqrt, std, var                     no gradient: norms that a model writes out itself
    multi_head_attention_forward              the same for what it calls

Kernels that hold attention or a norm as a whole and are not in this list are not seen (flex_attention, fused
norms of other libraries). Letters: B sentences, H heads, L query positions, S keys, K head width.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class LinearPass(TorchFunctionMode):
    """The mode in which torch's functions are replaced. largest: the most numbers, so far, of a tensor that
    gradients go through."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 1
        self.activated: Tensor | None = None  # what an activation gave last
        self.of_tanh: Tensor | None = None  # what tanh gave last, or 1 more: a factor of a written GELU

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:  # what it calls comes here too
                return _attention_forward(*args, **kwargs)
        gate, name = None, getattr(func, "__name__", "")
        if name in PRODUCTS:
            gate = next((each for each in (self.of_tanh, self.activated) if is_gate(each, *args[:2])), None)
            if gate is not None:
                held = gate.detach()
                args = tuple(held if each is gate else each for each in args)
        result = REPLACED.get(func, func)(*args, **kwargs)
        if not isinstance(result, Tensor):
            return result
        if func in CONSTANT:
            return result.detach()
        if func in ACTIVATIONS_OF_GATES or (gate is not None and gate is self.of_tanh):
            self.activated = result
        if func in TANH or (name in SUMS and args[0] is self.of_tanh and not isinstance(args[1], Tensor)):
            self.of_tanh = result
        if result.requires_grad:
            self.largest = max(self.largest, result.numel())
        return result


def is_gate(gate: Tensor | None, a: Any, b: Any) -> bool:
    """Whether one of two factors is this output of an activation and the other as many numbers that gradients
    go through: a product of both would count relevance twice."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor) and a.requires_grad and b.requires_grad
    return gate is not None and both and a.shape == b.shape and (a is gate) != (b is gate)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Return gamma (x - mean) / sigma + beta, where sigma is a constant: no gradient goes through it."""
    y = rms_norm(x - x.mean(last(normalized_shape), keepdim=True), normalized_shape, weight, eps)
    return y if bias is None else y + bias


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return gamma x / rms(x), where rms(x) is a constant: no gradient goes through it."""
    squares = x.detach().square().mean(last(normalized_shape), keepdim=True)
    scale = torch.rsqrt(squares + (torch.finfo(x.dtype).eps if eps is None else eps))
    return x * (scale if weight is None else scale * weight)


def last(shape: Sequence[int]) -> tuple[int, ...]:
    """The last dimensions of a tensor, as many as `shape` has."""
    return tuple(range(-len(shape), 0))


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *options: Any, **named: Any
) -> Tensor:
    """Return A v (.., H, L, K) for query (.., H, L, K), key and value (.., H, S, K), with constant weights A
    (.., H, L, S): the attention of the values' unit vectors."""
    with torch.no_grad():
        unit = torch.eye(key.shape[-2], dtype=value.dtype, device=value.device)
        unit = unit.expand(*value.shape[:-1], -1)
        weights = F.scaled_dot_product_attention(query, key, unit, *options, **named)
    if named.get("enable_gqa"):
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return weights @ value


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return GELU of x, as x times a constant."""
    return scaled(x, F.gelu(x.detach(), approximate=approximate))


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """Return swish of x, as x times a constant."""
    return scaled(x, F.silu(x.detach()))


def tanh(x: Tensor) -> Tensor:
    """Return tanh of x, as x times a constant."""
    return scaled(x, torch.tanh(x.detach()), limit=1.0)


def scaled(x: Tensor, y: Tensor, *, limit: float = 0.5) -> Tensor:
    """Return x times the constant y / x, at 0 its limit there, 1/2 for GELU and swish."""
    return x * torch.where(x == 0, limit, y / x).detach()


TANH = (torch.tanh, Tensor.tanh, F.tanh)
REPLACED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    F.gelu: gelu,
    F.silu: silu,
    **dict.fromkeys(TANH, tanh),
}
PRODUCTS, SUMS = ("mul", "__mul__", "multiply"), ("add", "__add__", "__radd__")
ACTIVATIONS_OF_GATES = {F.gelu, F.silu, F.relu, torch.relu}
CONSTANT: set[Callable[..., Any]] = {
    *(torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax),
    *(torch.sigmoid, Tensor.sigmoid, F.sigmoid),
    *(torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.std, Tensor.std, torch.var, Tensor.var),
}
# as torch wrote it, but it does not hand itself over to the mode as a whole
_attention_forward = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.multi_head_attention_forward.__globals__, "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
