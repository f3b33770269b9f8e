"""Attentions whose forward needs heads * head width = model width come to work with fewer heads: they are
refitted when the first go.

The `refit` of a site rule takes such an attention and returns the attributes to set beside the smaller
weights: a switch that its own forward asks for, or another class, whose forward does without that equation.
The module stays the same object at the same path, its class a subclass of what it was and of the same name,
so that its site rule, `isinstance` and hooks go on.
"""

from typing import Any

from torch import nn

# attribute of an attention that lost heads: for each head that it had at first, whether it is still there
LEFT = "heads_left"
# attribute of an attention that reads W_O's weight by its rule, and calls W_O since it was refitted
CALLS_OUT = "calls_out"


class Refitted:
    """Base of the classes whose forward takes the place of an attention's own. Copies and pickles of the
    module make its class again."""

    calls_out = True

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        forward, own = type(self).__bases__
        return blank, (own, forward), vars(self).copy()


_REFITTED: dict[Any, type[nn.Module]] = {}


def refitted(own: type[nn.Module], forward: type[Refitted]) -> type[nn.Module]:
    """The subclass of an attention's own class that has another forward, always the same one."""
    if (own, forward) not in _REFITTED:
        names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": forward.__doc__}
        _REFITTED[own, forward] = type(own.__name__, (forward, own), names)
    return _REFITTED[own, forward]


def by_forward(forward: type[Refitted], module: nn.Module) -> dict[str, Any]:
    """The class alone, where nothing else changes with the forward."""
    return {"__class__": refitted(type(module), forward)}


def blank(own: type[nn.Module], forward: type[Refitted]) -> nn.Module:
    cls = refitted(own, forward)
    return cls.__new__(cls)


def check_no_added_keys(module: Any) -> None:
    """Raises ValueError at an attention that adds a learned or a zero key and value, which belong to all its
    first heads."""
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        raise ValueError(
            f"heads of {type(module).__name__} can be gated, not removed, where it was made with "
            "add_bias_kv or add_zero_attn: "
            "expected one without either"
        )


def fairseq(module: Any) -> dict[str, Any]:
    """fairseq 0.12 has a switch for fewer heads: then torch's fused forward is not called, nor the width of
    the query compared."""
    if not hasattr(module, "skip_embed_dim_check"):
        raise ValueError(
            f"heads of this {type(module).__name__} can be gated, not removed: it has no "
            "`skip_embed_dim_check`; expected fairseq 0.12"
        )
    check_no_added_keys(module)
    return {"skip_embed_dim_check": True, CALLS_OUT: True}


def deberta(module: Any) -> dict[str, Any]:
    """Nothing to set. Raises ValueError where each head's weights are a mixture of all heads'."""
    if module.self.talking_head:
        raise ValueError(
            f"heads of {type(module).__name__} can be gated, not removed, with talking_head=True: its other "
            "heads read their weights"
        )
    return {}


def prophetnet(module: Any) -> dict[str, Any]:
    """Raises ValueError: nothing is refitted."""
    raise ValueError(
        f"heads of {type(module).__name__} can be gated, not removed: its forward gives the heads' outputs "
        "the width of the model, in two streams"
    )
