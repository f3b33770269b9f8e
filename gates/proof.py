"""A removal by a rule that no test of headgates covers is proved: the model without the heads gives what it
gave with masks on them, or it is put back as it was.

The forward pass is of a short sentence or image for a Hugging Face model, else of the last inputs that the
gates saw.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .evaluation_mode import evaluation_mode
from .headmap import HeadMap
from .rules import is_tested
from .sites import attach, detach

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def proved(
    model: nn.Module, changed: Iterable[nn.Module], xi: HeadMap, seen: Inputs | None
) -> Iterator[None]:
    """Around the removal of heads from the attentions that are `changed`, of a model without gates.

    xi: the gates of all heads, 0 where one goes. seen: the inputs of an earlier forward pass. Warns where no
    forward pass could be run. Raises ValueError, and puts the model back, where the outputs differ."""
    names = ", ".join(sorted({type(each).__name__ for each in changed if not is_tested(each)}))
    if not names:
        yield
        return
    tried = [each for each in (short_sentence(model), seen) if each is not None]
    proofs = ((inputs, masked_outputs(model, xi, inputs)) for inputs in tried)
    inputs, expected = next((proof for proof in proofs if proof[1]), (None, None))
    if inputs is None or expected is None:
        warnings.warn(
            f"the rule of {names} is not proved, as no forward pass was seen to run again: compare the "
            "outputs with those of the gates before you trust the model without these heads",
            stacklevel=4,
        )
        yield
        return
    cure = (
        "The model is as it was; its heads can be gated. Look for sizes in its forward that the rule lacks, "
        "such as widths=(...) or arguments=(...)"
    )
    proof = [(partial(outputs, inputs=inputs), expected)]
    with unchanged(model, proof, f"the rule of {names} does not fit: without the heads", cure):
        yield


@contextmanager
def unchanged(
    model: nn.Module,
    proofs: Iterable[tuple[Callable[[nn.Module], list[Tensor]], list[Tensor]]],
    what: str,
    cure: str,
) -> Iterator[None]:
    """Around a change that no output may show: the runs of the model give the outputs beside them, or the
    model is put back as it was.

    Raises ValueError, `what` a forward pass fails and the `cure`, where one does not."""
    put_back = memory_of(model)
    try:
        yield
        for run, expected in proofs:
            differ(expected, run(model))
    except Exception as error:
        put_back()
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{what} a forward pass fails ({said}). {cure}") from error


def masked_outputs(model: nn.Module, xi: HeadMap, inputs: Inputs) -> list[Tensor] | None:
    """What the model gives with these masks, None where it does not run on the inputs."""
    attach(model, gate="mask", xi=xi)
    try:
        return outputs(model, inputs) or None
    except Exception:  # of whatever kind: these inputs prove nothing
        return None
    finally:
        detach(model)


def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The floating tensors among what a forward pass in evaluation gives."""
    args, options = inputs
    with evaluation_mode(model), torch.no_grad():
        result = model(*args, **options)
    found = result.values() if isinstance(result, Mapping) else result
    listed = [found] if isinstance(found, Tensor) else found
    return [each for each in listed if isinstance(each, Tensor) and each.is_floating_point()]


def differ(expected: list[Tensor], got: list[Tensor]) -> None:
    """Raises AssertionError unless the outputs are equal, up to the rounding of their type."""
    for one, other in zip(expected, got, strict=True):
        size = float(one.detach().float().abs().max()) if one.numel() else 0.0
        slack = max(1e-3, 20 * torch.finfo(one.dtype).eps) * size  # heads of another layer move far more
        torch.testing.assert_close(other, one, rtol=0.0, atol=slack)


def short_sentence(model: nn.Module) -> Inputs | None:
    """Inputs for a Hugging Face model of text or images, None for any other."""
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", "")
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        return None
    if name == "pixel_values" and isinstance(size := getattr(config, "image_size", None), int):
        return (), {name: torch.linspace(-1, 1, 3 * size * size, device=device).view(1, 3, size, size)}
    words = getattr(config, "vocab_size", 0)
    if name != "input_ids" or words < 2:
        return None
    ids = torch.arange(3, 10, device=device)[None] % words
    both = getattr(config, "is_encoder_decoder", False)
    return (), {name: ids, **({"decoder_input_ids": ids.flip(1)} if both else {})}


def memory_of(model: nn.Module) -> Callable[[], None]:
    """Puts every module's class, attributes, parameters and hooks back as they are now."""
    memory = [
        (
            module,
            type(module),
            dict(vars(module)),
            [(each, dict(each)) for each in vars(module).values() if isinstance(each, dict)],
        )
        for module in model.modules()
    ]

    def put_back() -> None:
        for module, cls, attributes, held in memory:
            module.__class__ = cls
            vars(module).clear()
            vars(module).update(attributes)
            for each, content in held:
                each.clear()
                each.update(content)

    return put_back
