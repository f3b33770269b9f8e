"""Whole layers of our Transformer are skipped, or dropped for good.   LayerDrop's pruning (Fan et al. 2020,
arXiv:1909.11556) and ShortGPT's (Men et al. 2024, arXiv:2403.03853).

    layers = {"encoder": [1], "decoder": [3, 4]}
    with skipped(model, layers):     # while choosing: these layers pass the residual stream on unchanged
        ...                          # losses, translations, reconstruct(...)
    drop_layers(model, layers)       # for good, in place: the outputs are those with the layers skipped

Of a skipped layer nothing is left, its norms neither: with norms after the sums the stream is not normed
there. Meanwhile layers keep their numbers, and sites their names; dropping renumbers both. Each stack
remembers which of its first layers are left. A stack keeps at least one layer, as models of other libraries
need it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from torch import nn

from headgates.configs.fields import shortened
from headgates.gates.attach_modes import check_ungated
from headgates.models.transformer import Transformer

STACKS = ("encoder", "decoder")
Layers = Mapping[str, Iterable[int]]  # stack -> numbers of layers


@contextmanager
def skipped(model: nn.Module, layers: Layers) -> Iterator[None]:
    """Within the context these layers give what they get. A layer that is skipped already stays so, in the
    context and after it.

    layers: {"encoder": numbers, "decoder": numbers}, either may be missing. Raises ValueError at a model of
    another class, a stack or layer that it does not have, or where a stack would have no layer left."""
    chosen = [
        layer
        for stack, numbers in checked_layers(model, layers).items()
        for layer in (layers_of(model, stack)[number] for number in numbers)
        if not layer.skipped
    ]
    try:
        for layer in chosen:
            layer.skipped = True
        yield
    finally:
        for layer in chosen:
            layer.skipped = False


def drop_layers(model: nn.Module, layers: Layers) -> None:
    """Take these layers out of the model, in place; those after them move up, in their sites' names too.

    Weights that stay are the same parameters. Raises ValueError as `skipped` does, and at a model with
    gates."""
    chosen = checked_layers(model, layers)
    check_ungated(model)
    ours = cast(Transformer, model)
    for stack, numbers in chosen.items():
        if numbers:
            own = getattr(ours, stack)
            left = layers_left(model)[stack]
            gone = {[i for i, stays in enumerate(left) if stays][number] for number in numbers}
            own.layers = nn.ModuleList(each for i, each in enumerate(own.layers) if i not in numbers)
            own.layers_left = tuple(stays and i not in gone for i, stays in enumerate(left))
            sizes: dict[str, Any] = {f"{stack}_layers": len(own.layers)}
            ours.config = replace(ours.config, **sizes)


def layers_left(model: nn.Module, *, skipped: bool = True) -> dict[str, list[bool]]:
    """For each stack, whether each of its first layers is still there. skipped: those that are skipped count.
    Empty for a model of another class, which loses none."""
    if not isinstance(model, Transformer):
        return {}
    rows = {}
    for stack in STACKS:
        layers = layers_of(model, stack)
        row = list(getattr(model, stack).layers_left or [True] * len(layers))
        places = (place for place, stays in enumerate(row) if stays)
        rows[stack] = row.copy()
        for place, layer in zip(places, layers, strict=True):
            rows[stack][place] = skipped or not layer.skipped
    return rows


def set_layers_left(model: nn.Module, left: Mapping[str, Sequence[bool]]) -> None:
    """Tell a model that was built without its dropped layers which are left: what `layers_left` said when it
    was saved; stacks that are missing lost none.

    Raises ValueError at a stack that a model does not have, or another number of layers left."""
    for stack, row in left.items():
        count = len(layers_of(model, stack))
        if not all(isinstance(stays, bool) for stays in row) or sum(row) != count:
            raise ValueError(f"the {stack} has {count} layers, but {shortened(row)} are said to be left")
        getattr(model, stack).layers_left = tuple(row)


def layers_of(model: nn.Module, stack: str) -> Sequence[Any]:
    """The layers of a stack. Raises ValueError at a model of another class, or a stack that it does not
    have."""
    if not isinstance(model, Transformer):
        raise ValueError(
            f"layers of a {type(model).__name__} cannot be skipped or dropped, only those of our own "
            "Transformer, which models of fairseq, Marian and Hugging Face become too"
        )
    if stack not in STACKS:
        raise ValueError(f"expected layers of {' or '.join(STACKS)}, got {shortened(stack)}")
    layers: Sequence[Any] = getattr(model, stack).layers
    return layers


def checked_layers(model: nn.Module, layers: Layers) -> dict[str, set[int]]:
    """The numbers as sets. Raises ValueError as `skipped` does."""
    chosen = {stack: set(numbers) for stack, numbers in layers.items()}
    for stack, numbers in chosen.items():
        own = layers_of(model, stack)
        if strange := numbers - set(range(len(own))):
            raise ValueError(f"the {stack} has no layer {min(strange)}: it has {len(own)}, counted from 0")
        if numbers and all(layer.skipped or i in numbers for i, layer in enumerate(own)):
            raise ValueError(f"the {stack} would have no layer left; leave one of {len(own)} at least")
    return chosen
