"""Whole layers of any model are skipped, or dropped for good.   LayerDrop's pruning (Fan et al. 2020,
arXiv:1909.11556) and ShortGPT's (Men et al. 2024, arXiv:2403.03853).

    layers = {"encoder": [1], "decoder": [3, 4]}
    with skipped(model, layers):     # while choosing: these layers pass the residual stream on unchanged
        ...                          # losses, translations, reconstruct(...)
    drop_layers(model, layers)       # for good, in place: the outputs are those with the layers skipped

Nothing is left of a skipped layer, not even its norms: with norms after the sums the stream is not normed
there. Skipped layers keep their numbers, and sites their names; dropping renumbers both. Each stack remembers
which of its first layers are left, and keeps at least one layer, as other libraries need it.

A stack is the `nn.ModuleList` whose items hold the stack's sites. When layers leave it, the fields of the
configuration that count or list them, and the layer numbers by which caches find keys and values, follow.
"""

import copy
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import FrozenInstanceError, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from .alignment_list import alignment_kept
from .attach_modes import check_ungated
from .evaluation_mode import evaluation_mode
from .headmap import ALL_KINDS, KINDS
from .position_bias import share_out_bias
from .proof import ModelPass, built_from, differ, outputs, tried, unchanged
from .remove import left_of
from .rules import rule_of
from .short_example import Inputs, short_example
from .site_walk import SKIPPED
from .sites import find_sites

STACKS = ("encoder", "decoder")
StackLayers = Mapping[str, Iterable[int]]  # stack -> numbers of layers
LAYERS_LEFT = "layers_left"  # attribute of a list of layers that lost some: for each first layer, if it stays
# fields with the number of layers: of a stack in a configuration that both stacks share, and of the only one
OF_STACK = {stack: (f"{stack}_layers", f"num_{stack}_layers") for stack in STACKS}
OF_MODEL = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
# fields with an entry for each layer
LAYER_LISTS = (
    *("layer_types", "mlp_layer_types", "attention_layers", "no_rope_layers", "layers_block_type"),
    *("layer_rope_theta", "layers_num_experts", "num_attention_heads_per_layer"),
    *("num_key_value_heads_per_layer", "per_layer_config", "kv_sharing_modes", "indexer_types"),
    *("sliding_windows", "swiglu_limits", "swiglu_limits_shared"),
)
# fields that say how many of the first layers are of another sort, and fields that list numbers of layers
FIRST_LAYERS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
LISTED_LAYERS = ("mlp_only_layers", "cross_attention_layers")
LAYER_NUMBERS = ("layer_idx", "layer_id", "layer_number", "layer_num")  # attributes with a layer's own number


@contextmanager
def skipped(model: nn.Module, layers: StackLayers) -> Iterator[None]:
    """Within the context these layers give what they get. A layer that is skipped already stays so, in the
    context and after it.

    layers: {"encoder": numbers, "decoder": numbers}, either may be missing. A layer of another library still
    runs, for its cache and for what it makes for later layers; its output is not used. Raises ValueError at a
    stack or layer that the model does not have, or where a stack would have no layer left."""
    given = [layer for own in checked_layers(model, layers).values() for layer in own.values()]
    with ExitStack() as after:
        for layer in given:
            if getattr(layer, SKIPPED, False):
                continue
            if skips_itself(layer):
                after.callback(setattr, layer, SKIPPED, False)
            else:
                after.callback(delattr, layer, SKIPPED)
                after.enter_context(layer.register_forward_hook(passed_on, with_kwargs=True))
            setattr(layer, SKIPPED, True)
        yield


def skips_itself(layer: nn.Module) -> bool:
    """Whether its forward asks the attribute `skipped`, as those of our own Transformer do."""
    return hasattr(layer, SKIPPED)


def passed_on(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
    """The layer's input in the place of its output; what else it gives stays."""
    x = args[0] if args else options["hidden_states"]
    return x if isinstance(output, Tensor) else type(output)((x, *output[1:]))


def drop_layers(model: nn.Module, layers: StackLayers, *, inputs: Inputs | None = None) -> None:
    """Take these layers out of the model, in place; those after them move up, in their sites' names too.

    Weights that stay are the same parameters; the model gets configurations of its own. Layers of another
    library are proved: a forward pass, three tokens of `generate` where the model has it, and a forward pass
    of the model that its class builds from the new configuration, give without the layers what they gave
    with the layers skipped. inputs: (args, options) of a forward pass, for a model that does not take a short
    sentence, an image or a sound alone. Raises ValueError as `skipped` does, at a model with gates, and, the
    model as it was, where nothing proves the removal."""
    chosen = {stack: own for stack, own in checked_layers(model, layers).items() if own}
    check_ungated(model)
    if all(skips_itself(layer) for own in chosen.values() for layer in own.values()):
        cut_layers(model, chosen)
        return
    examples = [each for each in (inputs, short_example(model)) if each is not None]
    builds = [each for each in examples if is_rebuilt(model, each)]
    runs: list[ModelPass] = [partial(outputs, inputs=each) for each in examples]
    if getattr(model, "can_generate", bool)():
        runs += [partial(generated, inputs=each) for each in examples]
    with skipped(model, chosen):
        expected = [(run, found) for run in runs if (found := tried(run, model))]
        expected += [
            (partial(rebuilt_outputs, inputs=each), tried(partial(outputs, inputs=each), model))
            for each in builds
        ]
    if not expected:
        raise ValueError(
            f"layers of {type(model).__name__} cannot be dropped, as no forward pass could be run that "
            "proves the removal; give the arguments of one as inputs=((), {'input_ids': ids})"
        )
    what = f"layers of {type(model).__name__} cannot be dropped: without them"
    cure = "The model is as it was; its layers can be skipped, or others dropped"
    with unchanged(model, expected, what, cure), alignment_kept(model):
        cut_layers(model, chosen)


# ---------------------------------------------------------------- what proves it


def generated(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The logits of three tokens of a greedy search."""
    given = {name: each for name, each in inputs[1].items() if not name.startswith("decoder")}
    length = dict(max_new_tokens=3, min_new_tokens=3, do_sample=False, num_beams=1)
    with evaluation_mode(model), torch.no_grad():
        found = cast(Any, model).generate(
            *inputs[0], **given, **length, return_dict_in_generate=True, output_logits=True
        )
    return [*found.logits]


def is_rebuilt(model: nn.Module, inputs: Inputs) -> bool:
    """Whether its class builds the same model from its configuration, as it does for a folder."""
    try:
        differ(outputs(model, inputs), rebuilt_outputs(model, inputs))
    except Exception:  # of whatever kind: a model of another library, or one that was changed
        return False
    return True


def rebuilt_outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """What a model gives that its class builds from its configuration with its weights. Raises ValueError
    where the class builds one of other weights."""
    built = built_from(model, model.config)
    for one, other in zip(model.modules(), built.modules(), strict=True):
        other._parameters.update(one._parameters)
        other._buffers.update(one._buffers)
    return outputs(built, inputs)


# ---------------------------------------------------------------- the change itself


def cut_layers(model: nn.Module, chosen: Mapping[str, Collection[int]]) -> None:
    """`drop_layers` without its checks."""
    hand_on_bias(model, chosen)
    own_configurations(model)
    left, stacks = layers_left(model), stacks_of(model)
    for stack, numbers in chosen.items():
        layers = stacks[stack].layers
        count_layers(stacks, stack, [number not in numbers for number in range(len(layers))])
        places = [place for place, stays in enumerate(left[stack]) if stays]
        for number in sorted(numbers, reverse=True):
            del layers[number]
            left[stack][places[number]] = False
        setattr(layers, LAYERS_LEFT, tuple(left[stack]))


def hand_on_bias(model: nn.Module, chosen: Mapping[str, Collection[int]]) -> None:
    """Where the first layer makes the position bias of all (T5), let the first that stays make it."""
    sites = find_sites(model, ALL_KINDS)
    for kind in KINDS:
        rows = {site: left_of(site, each) for site, each in sites.items() if site.kind == kind}
        staying = {site: row for site, row in rows.items() if site.layer not in chosen.get(site.stack, ())}
        if staying and len(staying) < len(rows) and (bias := rule_of(sites[next(iter(rows))]).bias):
            before, after = ({sites[site]: row for site, row in each.items()} for each in (rows, staying))
            share_out_bias(bias, before, after)


def own_configurations(model: nn.Module) -> None:
    """Copy all configurations of a model: another model may have been made from the same."""
    owners = [cast(Any, module) for module in model.modules() if "config" in vars(module)]
    for owner, own in zip(owners, copy.deepcopy([owner.config for owner in owners]), strict=True):
        owner.config = own


def count_layers(stacks: "Mapping[str, Stack]", stack: str, keep: Sequence[bool]) -> None:
    """Write the number of layers that stay where the model holds it, cut lists with an entry for each layer,
    and number the layers anew. Raises ValueError where a configuration has another number of layers."""
    owners, layers = stacks[stack]
    others = [
        vars(each).get("config") for name, own in stacks.items() if name != stack for each in own.owners
    ]
    for owner in {id(vars(owner).get("config")): owner for owner in owners}.values():
        config = vars(owner).get("config")
        shared = any(config is each for each in others)
        word = stack.rpartition(".")[2]  # without its tower
        names = OF_STACK[word] if shared and word == "decoder" else OF_STACK[word] + OF_MODEL
        of_other = {name for other in STACKS if other != word for name in OF_STACK[other]}
        alias = getattr(config, "attribute_map", {})  # of Seamless the common name is the decoder's
        said = {
            name: number
            for name in names
            if alias.get(name) not in of_other and isinstance(number := getattr(config, name, None), int)
        }
        if said and len(keep) not in said.values():
            raise ValueError(f"the {stack} has {len(keep)} layers, its configuration says {said}")
        for name in (name for name, number in said.items() if number == len(keep)):
            set_config_field(owner, name, sum(keep))
        for name in () if shared else LAYER_LISTS:
            if isinstance(row := getattr(config, name, None), list) and len(row) == len(keep):
                set_config_field(owner, name, list(itertools.compress(row, keep)))
        for name in () if shared else FIRST_LAYERS:
            if isinstance(first := getattr(config, name, None), int):
                set_config_field(owner, name, sum(keep[:first]))
        for name in () if shared else LISTED_LAYERS:
            if isinstance(row := getattr(config, name, None), list):
                staying = [number for number in row if number < len(keep) and keep[number]]
                set_config_field(owner, name, [sum(keep[:number]) for number in staying])
        if not shared and len(getattr(config, "stage_names", None) or ()) == len(keep) + 1:
            number_stages(config, keep)
    for name in OF_MODEL:
        if vars(owners[-1]).get(name) == len(keep):
            setattr(owners[-1], name, sum(keep))
    for new, old in enumerate(itertools.compress(range(len(keep)), keep)):
        for module in layers[old].modules():
            for name in LAYER_NUMBERS:
                if vars(module).get(name) == old:
                    setattr(module, name, new)


def number_stages(config: Any, keep: Sequence[bool]) -> None:
    """A backbone's configuration names what it embeds and each layer, and says whose outputs it gives: for a
    layer that goes those of the one before it, which are the same."""
    given = [index % len(config.stage_names) for index in config.out_indices]
    config.stage_names = config.stage_names[: 1 + sum(keep)]
    config.out_indices = sorted({sum(keep[:index]) for index in given})


def set_config_field(owner: Any, name: str, value: Any) -> None:
    """Set a field of a module's configuration; our own is frozen."""
    try:
        setattr(owner.config, name, value)
    except FrozenInstanceError:
        owner.config = replace(owner.config, **{name: value})


# ---------------------------------------------------------------- which layers there are


class Stack(NamedTuple):
    """A list of layers, and the modules that it lies in, from the model down."""

    owners: list[nn.Module]
    layers: Any


def stacks_of(model: nn.Module) -> dict[str, Stack]:
    """The stacks whose sites lie in the items of one list, encoders first."""
    modules = dict(model.named_modules())
    paths = {module: path for path, module in modules.items()}
    found: dict[str, set[str]] = {}
    for site, module in find_sites(model, ALL_KINDS).items():
        found.setdefault(site.stack, set()).add(list_around(paths[module].split("."), site.layer, modules))
    chosen = {stack: min(lists).split(".") for stack, lists in found.items() if len(lists) == 1}
    return {
        stack: Stack([modules[".".join(path[:depth])] for depth in range(len(path))], modules[".".join(path)])
        for stack, path in chosen.items()
        if path != [""]
    }


def alike_layers(model: nn.Module, stack: str) -> list[list[int]]:
    """The numbers of a stack's layers that have sites, those together that hold as many parameters beside
    them: dense layers and layers of experts, say. None of a stack whose layers lie in no list."""
    if (own := stacks_of(model).get(stack)) is None:
        return []
    sites: dict[int, list[nn.Module]] = {}
    for site, module in find_sites(model, ALL_KINDS).items():
        if site.stack == stack:
            sites.setdefault(site.layer, []).append(module)
    found: dict[int, list[int]] = {}
    for number, modules in sorted(sites.items()):
        of_sites = {id(each) for module in modules for each in module.parameters()}
        rest = sum(each.numel() for each in own.layers[number].parameters() if id(each) not in of_sites)
        found.setdefault(rest, []).append(number)
    return [*found.values()]


def list_around(path: list[str], layer: int, modules: Mapping[str, nn.Module]) -> str:
    """The path of the outermost list whose item of this number holds the module; "" where there is none."""
    for depth in range(1, len(path)):
        above = ".".join(path[:depth])
        if path[depth] == str(layer) and isinstance(modules[above], (nn.ModuleList, nn.Sequential)):
            return above
    return ""


def layers_of(model: nn.Module, stack: str) -> Any:
    """The list of a stack's layers. Raises ValueError at a stack that the model does not have."""
    stacks = stacks_of(model)
    if not stacks:
        raise ValueError(
            f"layers of a {type(model).__name__} cannot be skipped or dropped: they lie in no list of its own"
        )
    if stack not in stacks:
        raise ValueError(f"expected layers of {' or '.join(stacks)}, got {str(stack)[:60]}")
    return stacks[stack].layers


def layers_left(model: nn.Module, *, skipped: bool = True) -> dict[str, list[bool]]:
    """For each stack, whether each of its first layers is still there. skipped: those that are skipped count.
    A stack whose layers lie in no list is left out."""
    rows = {}
    for stack, (_, layers) in stacks_of(model).items():
        row = rows[stack] = list(getattr(layers, LAYERS_LEFT, (True,) * len(layers)))
        places = [place for place, stays in enumerate(row) if stays]
        for place, layer in zip(places, layers, strict=True):
            row[place] = skipped or not getattr(layer, SKIPPED, False)
    return rows


def set_layers_left(model: nn.Module, left: Mapping[str, Sequence[bool]]) -> None:
    """Tell a model that was built without its dropped layers which are left: what `layers_left` said when it
    was saved; stacks that are missing lost none.

    Raises ValueError at a stack that a model does not have, or another number of layers left."""
    for stack, row in left.items():
        layers = layers_of(model, stack)
        if not all(isinstance(stays, bool) for stays in row) or sum(row) != len(layers):
            raise ValueError(f"the {stack} has {len(layers)} layers, but {str(row)[:60]} are said to be left")
        setattr(layers, LAYERS_LEFT, tuple(row))


def checked_layers(model: nn.Module, layers: StackLayers) -> dict[str, dict[int, nn.Module]]:
    """Stack -> number -> layer. Raises ValueError as `skipped` does."""
    chosen: dict[str, dict[int, nn.Module]] = {}
    for stack, numbers in ((stack, set(numbers)) for stack, numbers in layers.items()):
        own = layers_of(model, stack)
        if strange := numbers - set(range(len(own))):
            raise ValueError(f"the {stack} has no layer {min(strange)}: it has {len(own)}, counted from 0")
        if numbers and all(getattr(layer, SKIPPED, False) or i in numbers for i, layer in enumerate(own)):
            raise ValueError(f"the {stack} would have no layer left; leave one of {len(own)} at least")
        chosen[stack] = {number: own[number] for number in numbers}
    return chosen
