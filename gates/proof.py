"""A removal by a rule that no test of headgates covers is proved: the model without the heads gives what it
gave with masks on them, or it is put back as it was.

The forward pass is of inputs that the caller gives, of a short example for a Hugging Face model, or of the
last inputs that the gates saw.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .evaluation_mode import evaluation_mode, same_noise
from .headmap import HeadMap
from .put_back import memory_of
from .rules import is_tested
from .short_example import Inputs, short_example
from .sites import attach, detach

ModelPass = Callable[[nn.Module], list[Tensor]]


@contextmanager
def proved(
    model: nn.Module,
    changed: Iterable[nn.Module],
    xi: HeadMap,
    inputs: Inputs | None,
    seen: Inputs | None = None,
) -> Iterator[None]:
    """Around the removal of heads from the attentions that are `changed`, of a model without gates.

    xi: the gates of all heads, 0 where one goes. inputs, seen: of a forward pass, those given and those of
    an earlier one, which prove it beside a short example where the given ones cannot be run. Raises
    ValueError where no forward pass comes to an attention that is changed and, with the model put back, where
    the outputs differ."""
    changed = list(changed)
    names = ", ".join(sorted({type(each).__name__ for each in changed if not is_tested(each)}))
    if not names:
        yield
        return
    ways = [[inputs], [short_example(model), seen]]  # the caller knows what it takes
    proof = list[tuple[ModelPass, list[Tensor]]]()
    put_back, ran = memory_of(model), set[nn.Module]()  # BigBird changes itself when it reads few words
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is left alone, `remove` warns
        attach(model, gate="mask", kinds=xi.kinds, xi=xi)
    try:
        for example in [each for way in ways for each in way if each is not None]:
            if proof and inputs is not None:
                break
            run, now = partial(outputs, inputs=example), set[nn.Module]()
            with noticed(changed, now):
                given = tried(run, model)
            if given:  # a pass that fails on its way proves nothing
                proof.append((run, given))
                ran |= now
    finally:
        detach(model)
        put_back()
    unseen = {type(each).__name__ for each in changed if not (is_tested(each) or each in ran)}
    if unseen:
        raise ValueError(
            f"the rule of {', '.join(sorted(unseen))} is not proved, as no forward pass that could be run "
            "before and after its heads go comes to it; give the arguments of one as inputs=((), "
            "{'input_ids': ids})"
        )
    cure = (
        "The model is as it was; its heads can be gated. Look for sizes in its forward that the rule lacks, "
        "such as widths=(...) or arguments=(...)"
    )
    with unchanged(model, proof, f"the rule of {names} does not fit: without the heads", cure):
        yield


@contextmanager
def noticed(modules: Iterable[nn.Module], ran: set[nn.Module]) -> Iterator[None]:
    """Meanwhile those of the modules that run are added to `ran`."""
    handles = [each.register_forward_pre_hook(lambda module, _: ran.add(module)) for each in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def unchanged(
    model: nn.Module,
    proofs: Iterable[tuple[ModelPass, list[Tensor]]],
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


def tried(run: ModelPass, model: nn.Module) -> list[Tensor]:
    """What it gives, nothing where the model does not run on its inputs."""
    try:
        return run(model)
    except Exception:  # of whatever kind: these inputs prove nothing
        return []


def built_from(model: nn.Module, config: Any) -> nn.Module:
    """A model of its class by this configuration, without memory. Raises ValueError where its weights have
    other names or shapes."""
    with torch.device("meta"):
        built = type(model)(copy.deepcopy(config))
    shapes = ({name: each.shape for name, each in one.state_dict().items()} for one in (model, built))
    if wrong := sorted(name for name, _ in set.symmetric_difference(*(set(each.items()) for each in shapes))):
        raise ValueError(
            f"its class builds {wrong[0]} otherwise where there are fewer layers, so no folder could be read"
        )
    return built


def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The floating tensors among what a forward pass in evaluation gives."""
    args, options = inputs
    with evaluation_mode(model), torch.no_grad(), same_noise(model):
        result = model(*args, **options)
    if isinstance(result, Tensor):
        listed: Iterable[object] = [result]
    elif isinstance(result, Iterable) and not isinstance(result, Mapping):
        listed = result
    else:  # a dictionary, or an object such as a dataclass
        listed = (result if isinstance(result, Mapping) else vars(result)).values()
    return [each for each in listed if isinstance(each, Tensor) and each.is_floating_point()]


def differ(expected: list[Tensor], got: list[Tensor]) -> None:
    """Raises AssertionError unless the outputs are equal, up to the rounding of their type: their difference
    is small as a whole, as that of wrong heads is not, and has no large number, as a wrong position would."""
    for one, other in zip(expected, got, strict=True):
        eps = torch.finfo(one.dtype).eps
        size = float(one.detach().float().abs().max()) if one.numel() else 0.0
        torch.testing.assert_close(other, one, rtol=0.0, atol=max(1e-3, 20 * eps) * size)
        off, whole = ((each.detach().double()).norm() for each in (other.double() - one.double(), one))
        assert off <= max(1e-3, 4 * eps) * whole, f"they differ by {off / whole:.1%} of their size"
