"""Models without their closed heads, written to a folder and read again: safetensors and JSON, Hugging Face's
as transformers writes them.

    remove(model, bank.closed())
    save_pruned(model, "pruned")
    model = load_pruned("pruned")                    # one of Hugging Face
    model = load_pruned("pruned", model=Mine(...))   # any other: its class builds it, with all its heads

transformers builds every layer of a stack with as many heads as the config says. So config.json has one more
field, the first numbers of the heads that each site still has, and of the layers of stacks that lost some:

    "headgates": {"heads": {"encoder.0.enc-self": [0, 2, 5], "decoder.0.cross": [1], ...},
                  "layers": {"encoder": {"of": 6, "stay": [0, 1, 2, 3, 5]}}}

The field of any other model also has "class", the name of the class that takes the weights.

Where a config can say what is left (plain_config.py), it does ("of" then has the numbers of heads at first),
and `from_pretrained` reads the folder too. Where none can, `from_pretrained` says how to load the folder; it
would advise to fill the layers with random weights. README.md says what is left and how to load it
(model_card.py). Nothing in a folder is run: the class is looked up in transformers by the config's
`architectures`, no other code is asked for.

Folders that transformers 4 saved after its `prune_heads` are read too: their config.json has "pruned_heads".
"""

import copy
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .attach_modes import check_ungated
from .depth import cut_layers, layers_left, set_layers_left
from .folder_sizes import check_folder
from .headmap import ALL_KINDS, KINDS, HeadMap, HeadSite, is_rising
from .model_card import model_card
from .plain_config import plain_config
from .refit import Refitted
from .remove import cut_heads, heads_left, named_site, set_heads_left
from .sites import find_sites
from .subnet import LARGEST_SITE, checked_row, stays_of

FIELD = "headgates"  # of config.json
OLD_FIELD = "pruned_heads"  # transformers 4's: layer -> the numbers of its heads that are gone
_WEIGHTS = "model.safetensors"  # of a model that is none of Hugging Face's
# config fields by which transformers would load code from elsewhere: attention kernels, and classes of a
# folder's own
_CODE = ("auto_map", "attn_implementation", "_attn_implementation", "quantization_config")
# a config field that transformers takes for the name of a file and shows in an error
_FILE = "transformers_weights"
_ADVICE = "layers of this model have different sizes; load it with headgates.load_pruned, as README.md says"
# attributes of a model that was loaded from GGUF, whose weights transformers then unpacked
_GGUF = ("hf_quantizer", "is_quantized", "quantization_method")


def needed_module(name: str) -> Any:
    """A module that pruned folders need. Raises ImportError, naming the extra to install, where it is
    missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"pruned folders need {name} ({error}): pip install 'headgates[hf]', in a checkout pip install "
            "'.[hf]'",
            name=error.name,
        ) from None


def hugging_face() -> Any:
    """The module transformers. Raises ImportError where it or what it works with is missing."""
    needed_module("tokenizers"), needed_module("safetensors")
    return needed_module("transformers")


def save_pruned(model: nn.Module, folder: str | Path, *, notes: str = "") -> Path:
    """Write a model, whatever heads, neurons and layers it has left, to a new folder; the folder's path. Its
    README.md says how to load it and what is left.

    notes: what README.md is to say of the cost, in Markdown. The weights of a model that was loaded from GGUF
    are written unpacked. Raises ValueError if the model has gates attached, packed weights or no attention
    that a rule knows, FileExistsError if there is something in the folder, ImportError if the extra `hf` is
    not installed, OSError where nothing can be written. What fails leaves no folder."""
    theirs = is_hugging_face(model)
    hugging_face() if theirs else needed_module("safetensors.torch")
    check_ungated(model)
    place = folder_for(folder)
    field = left_field(model)
    plain = plain_config(model) if theirs else None
    was_there = place.exists()
    place.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial.", dir=place))
    try:
        if theirs:
            save_transformers(model, partial, field, plain)
        else:
            content = {FIELD: {"class": type(model).__name__, **field}}
            (partial / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            needed_module("safetensors.torch").save_model(model, str(partial / _WEIGHTS))
        card = model_card(model, theirs=theirs, plain=plain is not None, notes=notes)
        (partial / "README.md").write_text(card, encoding="utf-8")
        # the configuration last: without it the folder is none that can be loaded
        for file in sorted(partial.iterdir(), key=lambda file: file.name == "config.json"):
            file.replace(place / file.name)
        partial.rmdir()
    except BaseException:
        for file in [*place.iterdir()] if was_there else [place]:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        raise
    return Path(folder)


def folder_for(folder: str | Path) -> Path:
    """Where a model can be saved, links followed. Raises FileExistsError where something is there, OSError
    where nothing can be written."""
    place = Path(folder).resolve()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"{folder} is there already and not an empty folder; choose another")
    nearest = next(path for path in (place, *place.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise OSError(f"{folder} cannot be made: {nearest} is no folder that can be written in")
    return place


def save_transformers(model: Any, folder: Path, field: dict[str, Any], plain: Any | None) -> None:
    """`save_pretrained` with the field in the config, which is the plain one where there is one."""
    config = model.config
    model.config = copy.deepcopy(config) if plain is None else plain
    if plain is not None:
        left = heads_left(model, ALL_KINDS)
        of = {site.name: site.heads for site, row in left.items() if not row.all()}
        field = field | ({"of": of} if of else {})
    setattr(model.config, FIELD, field)
    try:
        with unpacked(model):
            model.save_pretrained(folder)
    finally:
        model.config = config
    if plain is None:
        path = folder / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content | {_FILE: _ADVICE}, indent=2) + "\n", encoding="utf-8")


@contextmanager
def unpacked(model: Any) -> Iterator[None]:
    """Within it a model that was loaded from GGUF is as any other. Raises ValueError where its weights are
    still packed."""
    marked = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    if str(getattr(marked, "quant_method", "")).rpartition(".")[2].lower() != "gguf":
        yield
        return
    if packed := next((name for name, each in model.named_parameters() if not each.is_floating_point()), ""):
        raise ValueError(
            f"{packed} is packed as in its GGUF file, and such weights cannot be saved; load the model with "
            "quantization_config=transformers.GgufConfig(dequantize=True)"
        )
    marks = {name: vars(model).pop(name) for name in _GGUF if name in vars(model)}
    vars(model.config).pop("quantization_config", None)
    try:
        yield
    finally:
        vars(model).update(marks)


def is_hugging_face(model: nn.Module) -> bool:
    """Whether transformers made the model's class, without importing transformers for the others."""
    return any(cls.__module__ == "transformers.modeling_utils" for cls in type(model).__mro__)


def numbers_left(model: nn.Module) -> dict[str, list[int]]:
    """The first numbers of the heads that each attention has left, and those of the neurons of feed-forward
    layers that lost some."""
    left = heads_left(model, ALL_KINDS)
    return {
        site.name: row.nonzero().flatten().tolist()
        for site, row in left.items()
        if site.kind in KINDS or not row.all()
    }


def left_field(model: nn.Module) -> dict[str, Any]:
    """The field's numbers, of layers too where a stack lost some."""
    layers = {stack: stays_of(row) for stack, row in layers_left(model).items() if not all(row)}
    return {"heads": numbers_left(model)} | ({"layers": layers} if layers else {})


def load_pruned(folder: str | Path, *, model: nn.Module | None = None, **options: Any) -> Any:
    """The model of a folder that `save_pruned` wrote, or transformers 4 after its `prune_heads`, in
    evaluation; `heads_left(model)` says which heads it has.

    model: for a class that is none of Hugging Face's, a new model of it with all its heads and layers, which
    loses those that are gone and takes the weights, in place; of a class of one's own made of one of Hugging
    Face's any model, whose class is built anew. options: for transformers' `from_pretrained`,
    such as dtype, device_map or attn_implementation. Raises ValueError, in one line, at a folder without
    config.json, the field `headgates` or safetensors, or one whose parts do not fit each other or the model;
    ImportError if the extra `hf` is not installed."""
    folder = Path(folder)
    content = config_content(folder)
    field = content.get(FIELD)
    if isinstance(field, dict) and isinstance(name := field.get("class"), str):
        if options:
            raise ValueError(
                f"{sorted(options)} are options of transformers, {folder} holds a {name}; give model= alone"
            )
        model = unpruned(model, name, folder)
        left = field_content(field, folder)
        take_out(model, left)
        with reading(folder, name):
            missing, unexpected = needed_module("safetensors.torch").load_model(
                model, folder / _WEIGHTS, strict=False
            )
        check_keys(folder, {"missing_keys": missing, "unexpected_keys": unexpected})
        return model.eval()
    transformers = hugging_face()
    cls = class_of(transformers, content, folder, model)
    left = {} if FIELD not in content else field_content(field, folder)
    with reading(folder, cls.__name__):
        known = {name: each for name, each in content.items() if name not in (*_CODE, _FILE, OLD_FIELD)}
        if decode := getattr(cls.config_class, "_decode_special_floats", None):  # infinity, which JSON lacks
            known = decode(known)
        config = cls.config_class.from_dict(known)

    class Pruned(cls):  # type: ignore[misc, valid-type]
        """Loses its heads before its weights are loaded, so that transformers does all the rest."""

        def __init__(self, config: Any, *args: Any, **more: Any):
            super().__init__(config, *args, **more)
            with torch.device("cpu"):  # transformers builds on the device meta, where a bool has no value
                take_out(self, left) if left else cut_heads(self, gone_before(self, content[OLD_FIELD]))
            # SigLIP's part of a model resets torch's attention, of which a refit took a weight
            for module in self.modules():
                attentions = (each for each in (module, *module.children()) if isinstance(each, Refitted))
                if any(isinstance(each, nn.MultiheadAttention) for each in attentions):
                    module._is_hf_initialized = True

        def _init_weights(self, module: nn.Module) -> None:
            # all weights of what was refitted are in the folder
            if not any(isinstance(part, Refitted) for part in (module, *module.children())):
                super()._init_weights(module)

    # transformers renames weights (GPT-NeoX's) for classes that are called and lie as its own
    Pruned.__name__ = Pruned.__qualname__ = cls.__name__
    Pruned.__module__ = cls.__module__
    with reading(folder, cls.__name__):
        check_folder(folder, content, lambda: Pruned(config))
        loaded, info = Pruned.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    check_keys(folder, info)
    loaded.__class__ = cls
    return loaded.eval()


def unpruned(model: nn.Module | None, name: str, folder: Path) -> nn.Module:
    """The model to load into. Raises ValueError unless it is one of the folder's class with all its heads and
    no gates."""
    if model is None:
        raise ValueError(
            f"{folder} holds the weights of a {name}, which is no Hugging Face model: give a new one, with "
            f"all its heads, as load_pruned(folder, model={name}(...))"
        )
    if type(model).__name__ != name:
        raise ValueError(f"{folder} holds the weights of a {name}, the model is a {type(model).__name__}")
    check_ungated(model)
    if not heads_left(model, ALL_KINDS).flat().all():
        raise ValueError("the model has lost heads already; give a new one, with all its heads")
    return model


@contextmanager
def reading(folder: Path, name: str) -> Iterator[None]:
    """Within it, errors of weights that are torn or do not fit are ValueErrors of one line."""
    try:
        yield
    except Exception as error:  # a config of other types sends transformers anywhere
        shown = " ".join(str(error).split())[:300]
        raise ValueError(f"the weights in {folder} cannot be read as those of a {name}: {shown}") from error


def check_keys(folder: Path, info: Mapping[str, Any]) -> None:
    """Raises ValueError where some weights are missing, unexpected or mismatched. info: their names, as
    transformers gives them."""
    wrong = "; ".join(
        f"{kind}: {', '.join(sorted(map(str, names)))}"[:300]
        for kind in ("missing", "unexpected", "mismatched")
        if (names := info.get(f"{kind}_keys"))
    )
    if wrong:
        raise ValueError(
            f"the weights in {folder} are not those of its config: {wrong}; copy the folder again, or save "
            "the model again"
        )


def config_content(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"expected a folder that save_pruned wrote, {folder} has no config.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not (FIELD in content or content.get(OLD_FIELD)):
        raise ValueError(
            f"{path} has no field {FIELD!r}, which save_pruned writes: save a model that lost heads by "
            "save_pruned(model, folder), and load one that lost none with from_pretrained"
        )
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} has no weights in safetensors, and no others are read, as they may hold code; save "
            "it again with save_pruned, or in transformers 4 with save_pretrained(safe_serialization=True)"
        )
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder} has an adapter, which may name another model; merge it before save_pruned, or take "
            "adapter_config.json away"
        )
    return content


def class_of(transformers: Any, content: Mapping[str, Any], folder: Path, model: nn.Module | None) -> Any:
    """The class of the folder's model: transformers' of this name, else that of the model that is given."""
    names = content.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    cls = getattr(transformers, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
        if model is not None and type(model) is not cls:
            raise ValueError(f"{folder} holds a {name}, which transformers builds; leave model= out")
        return cls
    if model is not None and type(model).__name__ == name and is_hugging_face(model):
        return type(model)
    raise ValueError(
        f"`architectures` in {folder / 'config.json'} must name one model class of transformers "
        f"{transformers.__version__}, got {str(names)[:100]}; for a class of your own give a model of it, "
        "load_pruned(folder, model=...)"
    )


def field_content(field: Any, folder: Path) -> dict[str, Any]:
    """The parts of the field, checked: "heads", and "of" and "layers" where it has them."""
    found = field if isinstance(field, dict) else {}
    heads, of, layers = found.get("heads"), found.get("of", {}), found.get("layers", {})
    if not (
        isinstance(heads, dict)
        and all(map(is_rising, heads.values()))
        and isinstance(of, dict)
        and all(type(number) is int and 0 < number <= LARGEST_SITE for number in of.values())
        and isinstance(layers, dict)
    ):
        raise ValueError(
            f"{FIELD!r} in {folder / 'config.json'} must be like {{'heads': {{'encoder.0.enc-self': [0, "
            f"2]}}}}, the first numbers of the "
            f"heads that are left, in order; got {json.dumps(field)[:100]}"
        )
    return {
        "heads": heads,
        "of": of,
        "layers": {name: checked_row(name, row) for name, row in layers.items()},
    }


def take_out(model: nn.Module, left: Mapping[str, Any]) -> None:
    """Remove the layers and heads that are not listed. Where the config says their numbers already, the model
    was built without them, and only their numbers are noted."""
    if is_hugging_face(model):
        set_layers_left(model, left["layers"])
    else:
        cut_layers(
            model,
            {
                stack: [number for number, stays in enumerate(row) if not stays]
                for stack, row in left["layers"].items()
            },
        )
    rows: dict[HeadSite, torch.Tensor] = {}
    noted: dict[HeadSite, torch.Tensor] = {}
    for name, row in left["heads"].items():
        now, _ = named_site(find_sites(model, ALL_KINDS), name)
        site = replace(now, heads=left["of"].get(name, now.heads))
        if row and row[-1] >= site.heads:
            raise ValueError(
                f"{name} has {site.heads} heads, 0 to {site.heads - 1}; head {row[-1]} is said to be left"
            )
        into = noted if name in left["of"] else rows
        into[site] = torch.zeros(site.heads, dtype=torch.bool)
        into[site][torch.tensor(row, dtype=torch.long)] = True
    set_heads_left(model, HeadMap(noted))
    cut_heads(model, ~HeadMap(rows))


def gone_before(model: nn.Module, pruned: Any) -> HeadMap:
    """True at the heads that transformers 4 removed: pruned has layer -> their numbers. Raises ValueError at
    a layer that has not one attention, or at numbers that it does not have."""
    rows = {}
    for layer, numbers in pruned.items():
        sites = [site for site in find_sites(model) if str(site.layer) == str(layer)]
        if len(sites) != 1 or not is_rising(sorted(numbers)) or max(numbers, default=0) >= sites[0].heads:
            raise ValueError(f"{OLD_FIELD} has heads {str(numbers)[:60]} of layer {str(layer)[:20]}")
        rows[sites[0]] = torch.zeros(sites[0].heads, dtype=torch.bool)
        rows[sites[0]][torch.tensor(numbers, dtype=torch.long)] = True
    return HeadMap(rows)
