"""What a model makes for the first heads of all its layers, cut for an attention that has lost some: position
biases given to its forward, norms over all heads at once, and numbers in a shared config.

Hooks here read which heads are left from the module that they are on, so that copies and further removals
need nothing more. Letters: B batch, H heads at first, K head width, L query positions, S key positions.
"""

import inspect
from functools import partial
from typing import Any

from torch import Tensor, nn

from .refit import LEFT
from .site_rule import SiteRule

_HOOKED = "takes_own_heads"  # attribute of a module that has its hook


class OwnConfig:
    """A config as one attention sees it: some numbers are its own, all others those of the model's."""

    def __init__(self, config: Any, **own: Any):
        earlier = vars(config) if isinstance(config, OwnConfig) else {"shared": config}
        vars(self).update({**earlier, **own})

    def __getattr__(self, name: str) -> Any:
        if name == "shared" or name.startswith("__"):  # a copy asks before it has any attribute
            raise AttributeError(name)
        return getattr(self.shared, name)


def take_own_heads(module: nn.Module, rule: SiteRule) -> None:
    """Put the hooks on an attention that lost heads, and on its norms over all heads."""
    parts = dict(module.named_modules())
    for norm in [parts[name] for name in rule.norms if name in parts]:
        if LEFT in vars(norm) and _HOOKED not in vars(norm):
            norm.register_forward_hook(own_outputs)
            setattr(norm, _HOOKED, True)
    if rule.arguments and LEFT in vars(module) and _HOOKED not in vars(module):
        places = list(inspect.signature(type(module).forward).parameters)[1:]
        named = {name: places.index(name) for name in rule.arguments}
        module.register_forward_pre_hook(partial(own_arguments, named), with_kwargs=True)
        setattr(module, _HOOKED, True)


def own_arguments(
    named: dict[str, int], module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The forward's arguments with the named ones, by their place or their name, cut."""
    left = getattr(module, LEFT)
    places = {place: name for name, place in named.items()}
    return (
        tuple(own(value, left) if place in places else value for place, value in enumerate(args)),
        {name: own(value, left) if name in named else value for name, value in options.items()},
    )


def own(value: Any, left: tuple[bool, ...]) -> Any:
    """The part of the heads that are left, of (B, H, L, S) or (B * H, L, S); what is the same for all heads
    stays."""
    heads = [head for head, there in enumerate(left) if there]
    if not isinstance(value, Tensor) or (value.dim() > 3 and value.shape[1] != len(left)):
        return value
    if value.dim() == 3:
        return value.unflatten(0, (-1, len(left)))[:, heads].flatten(0, 1)
    return value[:, heads]


def own_outputs(norm: nn.Module, _: Any, output: Tensor) -> Tensor:
    """(B, L, H left * K) of (B, L, H * K)."""
    left = getattr(norm, LEFT)
    heads = [head for head, there in enumerate(left) if there]
    return output.unflatten(-1, (len(left), -1))[..., heads, :].flatten(-2)
