"""Attach modes: how a gate comes to scale the inputs of W_O in a forward that somebody else may
have written.

    slot     the attention's own forward multiplies by the gate in its slot: xi of every shape
    hook     before the output projection runs, its input is scaled head by head: xi (H,), (B, H), and (B, H,
    L) for whole passes
    weight   the columns of W_O are scaled, where a forward reads `out_proj.weight` without calling
    `out_proj`: xi (H,)

A `SiteRule` names the attach mode. Letters: B batch, H heads, L query positions, K head width.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .base import HeadGate

_HOLD = "head_gate_hold"  # attribute of an attention that is held


@dataclass(frozen=True)
class SiteRule:
    """How one attention class is held. All names but `slot` may lie deeper in the module: "output.dense".

    Raises ValueError at an unknown mode or batch axis, or unless one of `heads` and `head_width` is named."""

    heads: str = ""  # the attribute with the number of heads H
    head_width: str = ""  # the attribute with K, where none says H: then H = the columns of W_O / K
    mode: str = "slot"  # "slot", "hook" or "weight"
    slot: str = "gate"  # mode "slot": the attribute that holds a gate or None
    batch_axis: int = (
        0  # mode "hook": of the output projection's input; 1 where that is (L, B, H * K), as in fairseq
    )
    # the projections; one name for all three where they are one weight, q's rows before k's before v's
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    out: str = "out_proj"
    group: str = ""  # the attribute that says how many heads in a row share one key and value head
    transposed: bool = False  # weights are (inputs, outputs), as those of GPT-2's Conv1D
    widths: tuple[str, ...] = ()  # attributes that hold heads * head width
    causal: str = ""  # the attribute that is true in a decoder's self-attention, where the path does not tell
    # the embedding, one column a head, by which the first layer of a stack makes the position bias of all
    # (T5)
    bias: str = ""
    zero_heads: bool = False  # its forward works when no head is left
    refit: Callable[[nn.Module], dict[str, Any]] | None = (
        None  # what else to set where the forward needs heads * K = its width: refit.py
    )

    def __post_init__(self) -> None:
        if self.mode not in ATTACH_MODES:
            raise ValueError(f"unknown attach mode {self.mode!r}{nearest(self.mode, list(ATTACH_MODES))}")
        if bool(self.heads) == bool(self.head_width):
            raise ValueError(
                "a SiteRule names `heads`, the attribute with the number of heads, or `head_width`, that "
                "with the width of one"
            )
        if self.batch_axis not in (0, 1):
            raise ValueError(
                "expected batch_axis 0, for inputs (B, L, H * K), or 1, for (L, B, H * K); got "
                f"{self.batch_axis}"
            )


class Hold:
    """One gate on one attention: `check` before, `take` it, `release` it. An attach mode is a subclass
    with these three."""

    def __init__(self, module: nn.Module, rule: SiteRule, gate: HeadGate):
        self.module, self.rule, self.gate = module, rule, gate

    @staticmethod
    def check(module: nn.Module, rule: SiteRule, heads: int) -> None:
        """Raises ValueError where the rule does not fit the module."""
        raise NotImplementedError("an attach mode says when its rule fits the module")

    def take(self) -> None:
        # past nn.Module's own __setattr__: the bank owns the gate, the attention only points to it
        object.__setattr__(self.module, _HOLD, self)

    def release(self) -> None:
        object.__delattr__(self.module, _HOLD)


def hold_of(module: nn.Module) -> Hold | None:
    """What holds this attention, or None."""
    hold = vars(module).get(_HOLD)
    assert hold is None or isinstance(hold, Hold)
    return hold


class SlotHold(Hold):
    """The attention's forward multiplies by itself: it calls the gate in its slot."""

    @staticmethod
    def check(module: nn.Module, rule: SiteRule, heads: int) -> None:
        cure = (
            ". A forward that has no slot is held by mode='hook' if it calls its output projection, else by "
            "mode='weight'"
        )
        if (content := attribute(module, rule.slot, "`slot`", cure)) is not None:
            raise ValueError(
                f"the slot {rule.slot!r} of {type(module).__name__} must hold None, it holds a "
                f"{type(content).__name__}"
            )

    def take(self) -> None:
        super().take()
        object.__setattr__(self.module, self.rule.slot, self.gate)

    def release(self) -> None:
        super().release()
        object.__setattr__(self.module, self.rule.slot, None)


class HookHold(Hold):
    """A forward pre-hook on the output projection scales its input."""

    @staticmethod
    def check(module: nn.Module, rule: SiteRule, heads: int) -> None:
        check_columns(module, rule, projection(module, rule.out), heads)

    def take(self) -> None:
        super().take()
        self.handle = projection(self.module, self.rule.out).register_forward_pre_hook(self.scale)

    def release(self) -> None:
        super().release()
        self.handle.remove()

    def scale(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        z, *others = inputs
        return scale_heads(z, self.gate(), batch_axis=self.rule.batch_axis), *others


class WeightHold(Hold):
    """A parametrization scales the columns of W_O. State dicts name the weight as without it. torch does not
    pickle such a model whole."""

    @staticmethod
    def check(module: nn.Module, rule: SiteRule, heads: int) -> None:
        check_columns(module, rule, plain_projection(module, rule.out), heads)

    def take(self) -> None:
        super().take()
        out = self.out = projection(self.module, self.rule.out)
        self.order = list(out._parameters)
        # unsafe: no trial call, which would ask the gate
        parametrize.register_parametrization(
            out, "weight", ScaledColumns(self.gate, self.rule.transposed), unsafe=True
        )
        self.handles = [
            out.register_state_dict_post_hook(to_plain_name),
            out.register_load_state_dict_pre_hook(from_plain_name),
        ]

    def release(self) -> None:
        super().release()
        for handle in self.handles:
            handle.remove()
        parametrized = type(self.out)
        # torch deletes the class's property, which a deep copy of the module shares
        self.out.__class__ = type(parametrized.__name__, parametrized.__bases__, dict(vars(parametrized)))
        parametrize.remove_parametrizations(self.out, "weight", leave_parametrized=False)
        for name in self.order:  # torch puts the weight last
            self.out._parameters[name] = self.out._parameters.pop(name)


ATTACH_MODES: dict[str, type[Hold]] = {"slot": SlotHold, "hook": HookHold, "weight": WeightHold}


class ScaledColumns(nn.Module):
    """W_O with the columns of head h times xi_h."""

    def __init__(self, gate: HeadGate, transposed: bool):
        super().__init__()
        self.gate = [gate]  # in a list: the bank owns it
        self.transposed = transposed

    def forward(self, weight: Tensor) -> Tensor:
        xi = self.gate[0]()
        if xi.dim() != 1:
            raise ValueError(
                f"an attention held by its weight takes gates of shape (H,), got {tuple(xi.shape)}: one "
                "weight serves the whole batch. "
                "Run the sentences one at a time, each with its own (H,) mask, or hold it by mode='hook' if "
                "its output projection is called"
            )
        columns = xi.repeat_interleave(weight.shape[0 if self.transposed else 1] // len(xi)).to(weight.dtype)
        return weight * (columns[:, None] if self.transposed else columns)


def scale_heads(z: Tensor, xi: Tensor, *, batch_axis: int) -> Tensor:
    """The input z of an output projection, (B, L, H * K) or, with batch_axis 1, (L, B, H * K), times xi (H,),
    (B, H) or (B, H, L).

    Raises ValueError where xi has other sentences or positions than z."""
    heads = xi.shape[min(xi.dim() - 1, 1)]
    if xi.dim() > 1:
        if xi.dim() == 2:
            xi = xi[..., None]
        if (
            z.dim() != 3
            or xi.shape[0] not in (1, z.shape[batch_axis])
            or xi.shape[2] not in (1, z.shape[1 - batch_axis])
        ):
            raise ValueError(
                f"xi of shape {tuple(xi.shape)} (B, H, L) does not fit the output projection's input "
                f"{tuple(z.shape)}, whose batch axis is "
                f"{batch_axis}; give one row a sentence (beams repeat theirs) and one number a position of "
                "the pass, or xi of shape (H,)"
            )
        xi = xi.transpose(1, 2) if batch_axis == 0 else xi.permute(2, 0, 1)  # as z, with H for H * K
    return (z.unflatten(-1, (heads, -1)) * xi[..., None].to(z.dtype)).flatten(-2)


def to_plain_name(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    state[f"{prefix}weight"] = state.pop(f"{prefix}parametrizations.weight.original")


def from_plain_name(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    if f"{prefix}weight" in state:
        state[f"{prefix}parametrizations.weight.original"] = state.pop(f"{prefix}weight")


def heads_of(module: nn.Module, rule: SiteRule) -> int:
    """The number of heads that this attention has now. Raises ValueError where the rule does not lead to a
    number."""
    field = "heads" if rule.heads else "head_width"
    number = attribute(module, getattr(rule, field), f"`{field}`")
    if not isinstance(number, int):
        raise ValueError(
            f"{getattr(rule, field)!r}, `{field}` in the SiteRule of {type(module).__name__}, is no number: "
            f"{type(number).__name__}"
        )
    return number if rule.heads else columns_of(projection(module, rule.out), rule) // number


def group_of(module: nn.Module, rule: SiteRule) -> int:
    """How many heads in a row share one key and value head, 1 where each has its own."""
    return int(attribute(module, rule.group, "`group`")) if rule.group else 1


def columns_of(out: nn.Module, rule: SiteRule) -> int:
    """The columns of W_O, H * K: the layer's own word, as a quantised weight may have any shape, else those
    of its weight."""
    return sizes_of(out, rule)[1]


def sizes_of(linear: nn.Module, rule: SiteRule) -> tuple[int, int]:
    """Outputs and inputs of a linear layer. Raises ValueError where it tells neither."""
    for names in (("out_features", "in_features"), ("nf", "nx")):  # the second are Conv1D's
        told = [getattr(linear, name, None) for name in names]
        if isinstance(told[0], int) and isinstance(told[1], int):
            return told[0], told[1]
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ValueError(
            f"a {type(linear).__name__} is no projection: expected out_features and in_features, or a "
            "weight of two dimensions"
        )
    outputs, inputs = weight.shape[:: -1 if rule.transposed else 1]
    return outputs, inputs


def attribute(module: nn.Module, path: str, field: str, cure: str = "") -> Any:
    """What the module has under a path that its rule names as `field`. Raises ValueError, with the nearest
    name, where there is nothing."""
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            names = [
                *vars(found),
                *(
                    key
                    for part in ("_modules", "_parameters", "_buffers")
                    for key in getattr(found, part, ())
                ),
            ]
            hint = nearest(name, [own for own in names if not own.startswith("_") and own != "training"])
            raise ValueError(
                f"{type(module).__name__} has no {path!r}, which its SiteRule names as {field}{hint}{cure}"
            )
        found = getattr(found, name)
    return found


def projection(module: nn.Module, path: str) -> nn.Module:
    """The projection of this path. Raises ValueError where there is none."""
    found = attribute(module, path, "a projection")
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"{path!r}, which the SiteRule of {type(module).__name__} names as a projection, is a "
            f"{type(found).__name__}"
        )
    return found


def plain_projection(module: nn.Module, path: str) -> nn.Linear:
    """The projection of this path, an nn.Linear or a class like it. Raises ValueError unless its weight is a
    parameter of its own."""
    found = projection(module, path)
    if "weight" not in dict(found.named_parameters(recurse=False)):
        raise ValueError(
            f"{path} of {type(module).__name__} has no plain weight; undo parametrisations and quantisation "
            "first"
        )
    return cast(nn.Linear, found)


def check_columns(module: nn.Module, rule: SiteRule, out: nn.Module, heads: int) -> None:
    """Raises ValueError unless the inputs of `out` are the heads' outputs side by side, as many as v
    gives."""
    columns, name = columns_of(out, rule), type(module).__name__
    if columns % heads:
        raise ValueError(
            f"the {columns} columns of {rule.out} do not divide into the {heads} heads of {name}; "
            "look at `heads`, `out` and `transposed` of its SiteRule"
        )
    if rule.out in (rule.q, rule.k, rule.v):
        raise ValueError(
            f"the SiteRule of {name} names {rule.out} as W_O and as q, k or v; W_O is the projection after "
            "the heads"
        )
    with suppress(AttributeError):  # a rule for gating alone need not name v
        values = sizes_of(attrgetter(rule.v)(module), rule)[0] * group_of(module, rule) if rule.v else None
        if values not in (None, columns * (rule.q, rule.k, rule.v).count(rule.v)):
            raise ValueError(
                f"{rule.out} of {name} has {columns} columns and {rule.v} {values} rows: expected the "
                "inputs of W_O to be the heads' "
                "outputs; look at `out` and `v` of its SiteRule"
            )


def nearest(name: str, names: list[str]) -> str:
    """The end of an error's sentence: the name that was meant, or all there are."""
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
