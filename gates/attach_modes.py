"""Attach modes: how a gate comes to scale the inputs of W_O in a forward that somebody else may have written.

    slot     the attention's own forward multiplies by the gate in its slot: xi of every shape
    hook     before the output projection runs, its input is scaled head by head: xi (H,), (B, H), and
             (B, H, L) for whole passes
    weight   the columns of W_O are scaled, where a forward reads `out_proj.weight` without calling
             `out_proj`: xi (H,)

A `SiteRule` names the attach mode. Letters: B batch, H heads, L query positions, K head width, D model width.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .bank import GateBank
from .base import HeadGate
from .site_rule import SiteRule, attribute, check_columns, plain_projection, projection

_HOLD = "head_gate_hold"  # attribute of an attention that has a gate


def scale_columns(weight: Tensor, xi: Tensor, *, transposed: bool) -> Tensor:
    """W_O (D, H * K), or (H * K, D) transposed, with the columns of head h times xi_h, (H,)."""
    if not len(xi):  # no head is left, nor any column
        return weight
    columns = xi.repeat_interleave(weight.shape[0 if transposed else 1] // len(xi)).to(weight)
    return weight * (columns[:, None] if transposed else columns)


def scale_heads(z: Tensor, xi: Tensor, *, batch_axis: int, flat: bool = False) -> Tensor:
    """The input z of an output projection, (B, L, H * K) or, with batch_axis 1, (L, B, H * K), times xi (H,),
    (B, H) or (B, H, L). flat: z may be (B * L, H * K), sentences of one length one after the other.

    Raises ValueError where xi has other sentences or positions than z."""
    heads = xi.shape[min(xi.dim() - 1, 1)]
    if xi.dim() > 1:
        if xi.dim() == 2:
            xi = xi[..., None]
            if z.dim() > 3 and not batch_axis:  # ProphetNet's streams (B, N, L, H * K)
                return scale_heads(z.flatten(1, -2), xi, batch_axis=0).view_as(z)
        # else what is packed may be of several lengths, such as the patches of images (Qwen2-VL)
        if z.dim() == 2 and (len(xi) == 1 or (flat and len(z) % len(xi) == 0)):
            return scale_heads(z.unflatten(0, (len(xi), -1)), xi, batch_axis=0).view_as(z)
        if (
            z.dim() != 3
            or xi.shape[0] not in (1, z.shape[batch_axis])
            or xi.shape[2] not in (1, z.shape[1 - batch_axis])
        ):
            raise ValueError(
                f"xi of shape {tuple(xi.shape)} (B, H, L) does not fit the output projection's input "
                f"{tuple(z.shape)}, whose batch axis is {batch_axis}; give one row a sentence (beams repeat "
                "theirs; of windows of images, run the images one at a time) and one number a position of "
                "the pass, or xi of shape (H,)"
            )
        xi = xi.transpose(1, 2) if batch_axis == 0 else xi.permute(2, 0, 1)  # as z, with H for H * K
    return (z.unflatten(-1, (heads, -1)) * xi[..., None].to(z)).flatten(-2)


class Hold:
    """One gate on one attention: `check` before, `take` it, `release` it. An attach mode is a subclass
    with these three."""

    def __init__(self, module: nn.Module, rule: SiteRule, gate: HeadGate, *, flat: bool = False):
        """flat: `scale_heads`."""
        self.module, self.rule, self.gate, self.flat = module, rule, gate, flat

    @staticmethod
    def check(module: nn.Module, rule: SiteRule, heads: int) -> None:
        """Raises ValueError where the rule does not fit the module."""
        check_columns(module, rule, projection(module, rule.out), heads)

    def take(self) -> None:
        # past nn.Module's own __setattr__: the bank owns the gate, the attention only points to it
        object.__setattr__(self.module, _HOLD, self)

    def release(self) -> None:
        object.__delattr__(self.module, _HOLD)


def holds(model: nn.Module) -> list[Hold]:
    """What holds the attentions of the model that have a gate."""
    return [vars(module)[_HOLD] for module in model.modules() if _HOLD in vars(module)]


def check_model(model: Any) -> None:
    """Raises ValueError, and says what was meant, at what is given in place of a model."""
    if isinstance(model, nn.Module) and not isinstance(model, GateBank):
        return
    if isinstance(model, GateBank):
        cure = "the model comes first, then its gates: remove(model, bank)"
    elif isinstance(model, str):
        cure = f"load it first, such as AutoModelForSeq2SeqLM.from_pretrained({model!r})"
    elif isinstance(getattr(model, "model", None), nn.Module):  # a pipeline, a trainer
        cure = "give its .model"
    else:
        cure = "give the module itself"
    raise ValueError(f"expected a model, a torch.nn.Module, got a {type(model).__name__}; {cure}")


def check_ungated(model: nn.Module) -> None:
    """Raises ValueError at what is no model, a model with gates, or one inside which has them."""
    check_model(model)
    if holds(model):
        raise ValueError(
            "the model already has gates; detach(model) takes them off, and before that bank.closed() says "
            "which heads they close"
        )


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

    def take(self) -> None:
        super().take()
        self.handle = projection(self.module, self.rule.out).register_forward_pre_hook(self.scale)

    def release(self) -> None:
        super().release()
        self.handle.remove()

    def scale(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        z, *others = inputs
        return scale_heads(z, self.gate(), batch_axis=self.rule.batch_axis, flat=self.flat), *others


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
                "weight serves the whole batch. Run the sentences one at a time, each with its own (H,) "
                "mask, or hold it by mode='hook' if its output projection is called"
            )
        return scale_columns(weight, xi, transposed=self.transposed)


def to_plain_name(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    state[f"{prefix}weight"] = state.pop(f"{prefix}parametrizations.weight.original")


def from_plain_name(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    if f"{prefix}weight" in state:
        state[f"{prefix}parametrizations.weight.original"] = state.pop(f"{prefix}weight")


ATTACH_MODES: dict[str, type[Hold]] = {"slot": SlotHold, "hook": HookHold, "weight": WeightHold}
