"""How one attention or feed-forward class is read: how its gates are attached, which attributes hold its
sizes and which its projections.

A neuron of a feed-forward layer is one column of its output projection, read as a head of width 1.   Letters:
B batch, H heads or neurons, L query positions, K head width.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from .names import check_name, nearest

MODES = ("slot", "hook", "weight")  # attach_modes.py
FUSED = ("parts", "heads")
BRING_BACK = (
    "accelerate.hooks.remove_hook_from_module(model, recurse=True) brings them back, or load the model "
    "without offloading"
)


@dataclass(frozen=True)
class SiteRule:
    """How one class is held: an attention or, where `inner` is named, a feed-forward layer. All names but
    `slot` may lie deeper in the module: "output.dense".

    Raises ValueError at an unknown mode or batch axis, or unless one of `heads` and `head_width` is named."""

    heads: str = ""  # the attribute with the number of heads H
    head_width: str = ""  # the attribute with K, where none says H: then H = the columns of `out` / K
    mode: str = "slot"  # "slot", "hook" or "weight"
    slot: str = "gate"  # mode "slot": the attribute that holds a gate or None
    batch_axis: int = 0  # of the output projection's input; 1 where that is (L, B, H * K), as in fairseq
    # mode "hook": the attribute that is false where the batch axis is 1
    batch_first: str = ""
    # the projections; one name for all three, or for k and v, where they are one weight
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    out: str = "out_proj"
    # of a feed-forward layer, in the place of q, k and v: the projections whose rows are the neurons; a name
    # twice is one weight for two, the rows of one behind those of the other
    inner: tuple[str, ...] = ()
    # how the rows lie in a weight of several: "parts", all of q, of k, then of v, or "heads", for each key
    # head those of its heads' q, then its k, then its v
    fused: str = "parts"
    group: str = ""  # the attribute that says how many heads in a row share one key and value head
    keys: str = ""  # the attribute with the number of key heads
    # a head's rows of q, of k and of v differ in number: a gate beside each query (Qwen3-Next), rotary
    # positions that are no rows of k (DeepSeek)
    own_widths: bool = False
    # what has numbers for each head beside the projections, where the module has it: a parameter (the rows,
    # or H columns of a table), a linear layer's outputs, an embedding's columns
    also: tuple[str, ...] = ()
    # the norms of q and of k, where the module has them, over each head or over all heads at once
    norms: tuple[str, ...] = ()
    # arguments of its forward that hold all heads' numbers, (B, H, ...) or (B * H, ...)
    arguments: tuple[str, ...] = ()
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
        check_name("attach mode", self.mode, MODES)
        check_name("layout of a fused weight", self.fused, FUSED)
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

    @property
    def inputs(self) -> tuple[str, ...]:
        """The projections before `out`, each once."""
        return tuple(dict.fromkeys(self.inner or (self.q, self.k, self.v)))

    @property
    def values(self) -> str:
        """The projection whose rows, in blocks, are the columns of `out`."""
        return self.inner[-1] if self.inner else self.v


def heads_of(module: nn.Module, rule: SiteRule) -> int:
    """The number of heads that this attention has now. Raises ValueError where the rule does not lead to a
    number."""
    field = "heads" if rule.heads else "head_width"
    name = getattr(rule, field)
    number = attribute(module, name, f"`{field}`")
    if not isinstance(number, int):
        raise ValueError(
            f"{name!r}, `{field}` in the SiteRule of {type(module).__name__}, is no number: "
            f"{type(number).__name__}"
        )
    return number if rule.heads else columns_of(projection(module, rule.out), rule) // number


def heads_per_key(module: nn.Module, rule: SiteRule) -> int:
    """How many heads in a row share one key and value head, 1 where each has its own."""
    if rule.keys:
        return heads_of(module, rule) // int(attribute(module, rule.keys, "`keys`"))
    return int(attribute(module, rule.group, "`group`")) if rule.group else 1


def group_of(module: nn.Module, rule: SiteRule) -> int:
    """How many heads in a row can only be removed together: those of one key head, unless it is the only
    one."""
    shared = heads_per_key(module, rule)
    return 1 if shared == heads_of(module, rule) else shared


def blocks_of(module: nn.Module, rule: SiteRule, name: str, heads: int) -> list[tuple[str, int]]:
    """The blocks of rows of one projection in their order: of "q", "k" or "v", and of which of its heads; of
    a feed-forward layer a row is a neuron's, of "v". Raises ValueError where the rule puts q and only one of
    the others in one weight."""
    if rule.inner:
        return [("v", neuron) for neuron in range(heads)] * rule.inner.count(name)
    parts = "".join(part for part in "qkv" if getattr(rule, part) == name)
    if parts not in ("q", "k", "v", "kv", "qkv"):
        raise ValueError(
            f"the rule of {type(module).__name__} has two weights for q, k and v, one of them for "
            f"{' and '.join(parts)}; expected three, one for k and v, or one that holds all"
        )
    shared = heads_per_key(module, rule)
    keys = range(heads // shared)
    if rule.fused == "parts":
        return [(part, head) for part in parts for head in (range(heads) if part == "q" else keys)]
    return [
        (part, head)
        for key in keys
        for part in parts
        for head in (range(key * shared, (key + 1) * shared) if part == "q" else [key])
    ]


def rows_of(
    module: nn.Module, rule: SiteRule, name: str, heads: int, *, rows: int, width: int
) -> list[tuple[str, int]]:
    """For each row of one projection, of which part and which of its heads it is, as `blocks_of` says; empty
    where the rows do not divide so. rows: how many it has. width: of a head's output."""
    blocks = blocks_of(module, rule, name, heads)
    own = block_rows([part for part, _ in blocks], rows, width if rule.own_widths else None)
    return [block for block in blocks for _ in range(own[block[0]])] if own else []


def block_rows(parts: list[str], rows: int, width: int | None) -> dict[str, int]:
    """How many rows a block of each part has: all as many, or those of v `width` and the others the rest.
    Empty where that does not divide."""
    of_v = 0 if width is None else parts.count("v")
    others, rest = len(parts) - of_v, rows - of_v * (width or 0)
    if rest % max(others, 1) or (rest > 0) != (others > 0):
        return {}
    each = rest // max(others, 1)
    return {part: width if of_v and width and part == "v" else each for part in parts}


def columns_of(out: nn.Module, rule: SiteRule) -> int:
    """The columns of W_O, H * K."""
    return sizes_of(out, rule)[1]


def sizes_of(linear: nn.Module, rule: SiteRule) -> tuple[int, int]:
    """Outputs and inputs of a linear layer: its own word, as a quantised weight may have any shape, else
    those of its weight. Raises ValueError where it tells neither."""
    for names in (("out_features", "in_features"), ("nf", "nx")):  # the second are Conv1D's
        outputs, inputs = (getattr(linear, name, None) for name in names)
        if isinstance(outputs, int) and isinstance(inputs, int):
            return outputs, inputs
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
            hint = nearest(name, [own for own in dir(found) if own not in dir(nn.Module())])
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
    parameter of its own, in floats that need no scales beside them."""
    found = projection(module, path)
    if hasattr(found, "base_layer"):
        raise ValueError(
            f"{path} of {type(module).__name__} has an adapter ({type(found).__name__}): merge it first, "
            "model = model.merge_and_unload()"
        )
    if execution_device(found) is not None and found.weight.is_meta:
        raise ValueError(
            f"the weights of {type(module).__name__} are offloaded: its heads can be gated, not removed, nor "
            f"their weights read; {BRING_BACK}"
        )
    own = dict(found.named_parameters(recurse=False))
    scales = {*own, *dict(found.named_buffers(recurse=False))} - {"weight", "bias"}
    if "weight" not in own or scales or not own["weight"].is_floating_point() or own["weight"].itemsize < 2:
        raise ValueError(
            f"{path} of {type(module).__name__} has no plain weight; undo parametrisations and quantisation "
            "first"
        )
    return cast(nn.Linear, found)


def execution_device(module: nn.Module) -> Any:
    """Where accelerate runs a module whose weights it offloads, None at any other module."""
    hook = getattr(module, "_hf_hook", None)
    for each in getattr(hook, "hooks", (hook,)):
        if getattr(each, "offload", False):
            return cast(Any, each).execution_device
    return None


def check_here(model: nn.Module) -> None:
    """Raises ValueError at a module whose weights accelerate takes away after its forward pass, before a
    backward pass needs them."""
    for module in model.modules():
        if execution_device(module) is not None and any(each.is_meta for each in module.parameters(False)):
            raise ValueError(
                f"the weights of {type(module).__name__} are offloaded, so no gradient passes through it "
                f"(exact_effects needs none); {BRING_BACK}"
            )


def check_own_weights(weights: Iterable[Tensor]) -> None:
    """Raises ValueError where two projections have one weight."""
    numbers = [id(weight) for weight in weights]
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            "two projections share one weight, so heads cannot be taken from one alone; give each its own "
            "copy first"
        )


def check_columns(module: nn.Module, rule: SiteRule, out: nn.Module, heads: int) -> None:
    """Raises ValueError unless the inputs of `out` are the heads' outputs side by side, as many as v
    gives."""
    columns, name = columns_of(out, rule), type(module).__name__
    if columns % heads:
        raise ValueError(
            f"the {columns} columns of {rule.out} do not divide into the {heads} heads of {name}; "
            "look at `heads`, `out` and `transposed` of its SiteRule"
        )
    if rule.out in rule.inputs:
        raise ValueError(
            f"the SiteRule of {name} names {rule.out} as W_O and as q, k or v; W_O is the projection after "
            "the heads"
        )
    parts = dict(module.named_modules())
    if rule.values in parts:  # a rule for gating alone need not name v
        rows, blocks = sizes_of(parts[rule.values], rule)[0], blocks_of(module, rule, rule.values, heads)
        width = columns // heads
        own = block_rows([part for part, _ in blocks], rows, width if rule.own_widths else None)
        if own.get("v") != width:
            raise ValueError(
                f"{rule.out} of {name} has {columns} columns and {rule.values} {rows} rows: expected the "
                "inputs of W_O to be the heads' outputs; look at `out` and `v` of its SiteRule"
            )
