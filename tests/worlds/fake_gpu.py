"""A GPU that is emulated on a CPU build of torch: its tensors say that they are on "fakegpu:0", hold their
numbers on the CPU, and refuse what CUDA refuses.

    register()                             # in a process of its own: it names the device for good
    with fake_gpu():
        model.to("fakegpu")(ids)           # RuntimeError: ids are on the CPU

What is refused: an operation of tensors on both devices, but for what CUDA allows (copies, numbers of no
dimension beside tensors, indices on the CPU); a generator of the CPU for numbers on the device; `numpy()` of
a tensor there. Modes that end with the context do all of this; only the registered name stays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "fakegpu"
CPU = torch.device("cpu")


class Backend(backend_registration._DummyBackendModule):
    """torch.fakegpu"""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def register() -> None:
    """Name the device, for good, before the first backward pass of a process, when the autograd engine asks
    which there are. Beside a real GPU every backward pass fails then."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())


# operations that take tensors of both devices on CUDA too
COPIES = {"aten::copy_", "aten::_to_copy", "aten::set_"}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
JOINS = {"aten::cat", "aten::stack"}  # a number of no dimension counts as a tensor here
# operations that change a tensor's shape in place: the emulated one would keep its own
RESHAPES = {f"aten::{name}_" for name in ("resize", "squeeze", "unsqueeze", "t", "transpose", "as_strided")}


class OnDevice(Tensor):
    """A tensor on the emulated device; `inner` is the one on the CPU that holds its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        outer = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device(NAME, 0),
        )
        outer.inner = inner
        return outer

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner} on {NAME}"

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return OnDevice, (self.inner,)

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(operation, args, kwargs or {})


def mapped(change: Callable[[Tensor], Any], item: Any) -> Any:
    """The item with each tensor in it changed; torch's own map of any nesting takes four times as long."""
    if isinstance(item, Tensor):
        return change(item)
    if type(item) in (list, tuple):
        return type(item)(mapped(change, each) for each in item)
    if type(item) is dict:
        return {name: mapped(change, each) for name, each in item.items()}
    return item


def is_here(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def refuse(why: str) -> None:
    raise RuntimeError(f"fake GPU: {why}")


def check_devices(name: str, args: Sequence[Any], tensors: list[Tensor]) -> None:
    """Refuse what CUDA would of an operation's tensors, of which one at least is on the device."""
    first, others = tensors[0], [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if name in RESHAPES:
        raise NotImplementedError(f"{name} on the fake GPU")
    if name in INDEXED:
        if not isinstance(first, OnDevice):
            refuse(f"{name}: indices on the device, and the tensor that they index on the CPU")
        others = [args[2]] if len(args) > 2 and not isinstance(args[2], OnDevice) else []
    if name in COPIES:
        return
    if mixed := [tuple(other.shape) for other in others if other.dim() or name in JOINS]:
        refuse(f"{name}: tensors on the device and, of shapes {mixed}, on the CPU")
    if name.endswith("_") and not isinstance(first, OnDevice):
        refuse(f"{name}: changes a number on the CPU by one on the device")


def computed(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operation's result, computed on the CPU and put onto the device that CUDA would have it on."""
    name = operation._schema.name
    tensors: list[Tensor] = []
    known: dict[int, OnDevice] = {}  # what is changed in place stays the same object

    def inner(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        if isinstance(tensor, OnDevice):
            known[id(tensor.inner)] = tensor
            return tensor.inner
        return tensor

    own_args, own = mapped(inner, tuple(args)), mapped(inner, dict(kwargs))
    if known:
        check_devices(name, args, tensors)
    asked = kwargs.get("device")
    goes_here = is_here(asked) if asked is not None else bool(known)
    if name in COPIES and asked is None:
        goes_here = isinstance(tensors[0], OnDevice)
    if goes_here and kwargs.get("generator") is not None:
        refuse(f"{name}: a generator of the CPU for numbers on the device")
    result = operation(*own_args, **(own | {"device": CPU} if is_here(asked) else own))
    if not goes_here:
        return result
    return mapped(lambda tensor: known[id(tensor)] if id(tensor) in known else OnDevice(tensor), result)


class Operations(TorchDispatchMode):
    """Operations that take no tensor, such as `torch.zeros(3, device="fakegpu")`."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(operation, args, kwargs or {})


# ---------------------------------------------------------------- what torch does above its operations


def made(make: Callable[..., Tensor], data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    """torch.tensor and torch.as_tensor read numbers, arrays and tensors by address."""
    result = data if isinstance(data, OnDevice) else make(data, *args, **kwargs)
    return result.to(device=device, dtype=kwargs.get("dtype"))


def made_beside(_: Any, own: Tensor, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    return made(torch.tensor, data, dtype=dtype or own.dtype, device=device or own.device)


def numpy_refused(*_: Any, **__: Any) -> None:
    raise TypeError("can't convert fakegpu:0 device type tensor to numpy. Use Tensor.cpu() first")


def of_inner(function: Callable[..., Any], own: OnDevice, *args: Any, **kwargs: Any) -> Any:
    return function(own.inner.detach(), *args, **kwargs)


def indexed(function: Callable[..., Any], own: OnDevice, index: Any, *value: Any) -> Any:
    """A list as an index becomes a tensor in C++."""
    parts = index if isinstance(index, tuple) else (index,)
    made = tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts)
    return function(own, made, *value)


def replaced(function: Callable[..., Any], own: OnDevice, value: Tensor) -> None:
    """`parameter.data = value`"""
    if not isinstance(value, OnDevice):
        refuse("data on the CPU for a tensor on the device")
    function(own, value)
    own.inner = value.inner


def attended(
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch chooses a kernel by the device; here the one of formulae, which adds its mask."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    formulae = torch.ops.aten._scaled_dot_product_attention_math
    given = dict(scale=scale, enable_gqa=enable_gqa)
    return formulae(query, key, value, attn_mask, dropout_p, is_causal, **given)[0]


MAKERS = {torch.tensor: made, torch.as_tensor: made, Tensor.new_tensor: made_beside}
METHODS = {
    Tensor.numpy: numpy_refused,
    Tensor.__array__: numpy_refused,
    Tensor.tolist: of_inner,
    Tensor.untyped_storage: of_inner,
    Tensor.data_ptr: of_inner,
    Tensor.__getitem__: indexed,
    Tensor.__setitem__: indexed,
    Tensor.data.__set__: replaced,  # type: ignore[attr-defined]
    F.scaled_dot_product_attention: attended,
}


class Functions(TorchFunctionMode):
    """Functions of torch that reach no operation, or choose one by the device."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in MAKERS:
            return MAKERS[function](function, *args, **(kwargs or {}))
        if function in METHODS and args and isinstance(args[0], OnDevice):
            return METHODS[function](function, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


@contextmanager
def fake_gpu() -> Iterator[None]:
    """The device "fakegpu" while the context lasts."""
    with (
        patch.object(torch._C, "_InferenceMode", without_gradients),
        patch.object(nn.Module, "_apply", converted(nn.Module._apply)),
        Functions(),
        Operations(),
    ):
        yield


def without_gradients(wanted: bool) -> Any:
    """In place of inference mode, in which torch makes no tensors of a class of one's own."""
    return torch.no_grad() if wanted else nullcontext()


def converted(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """What a module's `to` calls, exchanging what parameters hold, so that shared weights stay shared."""

    def swapping(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return swapping
