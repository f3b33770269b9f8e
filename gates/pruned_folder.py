"""Models without their closed heads, written to a folder and read again: safetensors and JSON, Hugging Face's
as transformers writes them.

    remove(model, bank.closed())
    save_pruned(model, "pruned")
    model = load_pruned("pruned")                    # a Hugging Face model
    model = load_pruned("pruned", model=Mine(...))   # any other: its class builds it, with all its heads

transformers builds every layer of a stack with as many heads as the config says. So config.json has one more
field, the first numbers of the heads that each site still has:

    "headgates": {"heads": {"encoder.0.enc-self": [0, 2, 5], "decoder.0.cross": [1], ...}}

The field of any other model also has "class", the name of the class that takes the weights.

Where all sites keep the same number and the config can say so, it does ("of" is then the number at first),
and `from_pretrained` reads the folder too. Nothing in a folder is run: the class is looked up in transformers
by the config's `architectures`, no other code is asked for.
"""

import copy
import importlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from .attach_modes import check_ungated
from .folder_sizes import check_folder
from .headmap import ALL_KINDS, KINDS, HeadMap, HeadSite, is_rising
from .position_bias import OwnColumns
from .refit import Refitted
from .remove import cut_heads, heads_left, named_site, set_heads_left
from .rules import rule_of
from .site_rule import heads_per_key
from .sites import find_sites
from .subnet import LARGEST_SITE

FIELD = "headgates"  # of config.json
_WEIGHTS = "model.safetensors"  # of a model that is none of Hugging Face's
# config fields by which transformers would load code from elsewhere: attention kernels, and classes of a
# folder's own
_CODE = ("auto_map", "attn_implementation", "_attn_implementation", "quantization_config")
_HEAD_FIELDS = ("num_attention_heads", "num_heads")  # config fields with the number of heads of all sites


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


def save_pruned(model: nn.Module, folder: str | Path) -> Path:
    """Write a model, whatever heads it has left, to a new folder; the folder's path.

    Raises ValueError if the model has gates attached or no attention that a rule knows, FileExistsError if
    there is something in the folder, ImportError if the extra `hf` is not installed. What fails leaves no
    folder."""
    theirs = is_hugging_face(model)
    hugging_face() if theirs else needed_module("safetensors.torch")
    check_ungated(model)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already and not an empty folder; choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        if theirs:
            config = model.config
            try:
                model.config = saved_config(model)
                cast(Any, model).save_pretrained(partial)
            finally:
                model.config = config
        else:
            content = {FIELD: {"class": type(model).__name__, "heads": numbers_left(model)}}
            (partial / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            needed_module("safetensors.torch").save_model(model, str(partial / _WEIGHTS))
        partial.chmod(0o755)  # mkdtemp's is the owner's alone
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


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


def saved_config(model: Any) -> Any:
    """The model's config with the field `headgates` and, where a config can say it, the number of heads that
    every site has left."""
    left = heads_left(model)
    config = copy.deepcopy(model.config)
    setattr(config, FIELD, {"heads": numbers_left(model)})
    smaller = config_of_fewer(model, config)
    if smaller is not None and left.count() < left.heads_total:
        getattr(smaller, FIELD)["of"] = next(iter(left)).heads
        return smaller
    return config


def config_of_fewer(model: Any, config: Any) -> Any | None:
    """A config from which transformers itself builds a model of these shapes, or None: where sites differ, it
    cannot."""
    modules = find_sites(model)
    counts = {site.heads for site in modules}
    field = next((name for name in _HEAD_FIELDS if name in config.to_dict()), None)
    if (
        len(counts) > 1
        or field is None
        or any(isinstance(vars(module).get("compute_bias"), OwnColumns) for module in modules.values())
        or any(rule_of(module).arguments for module in modules.values())  # made by the number of heads
    ):
        return None
    smaller, module = copy.deepcopy(config), next(iter(modules.values()))
    heads = next(iter(counts))
    setattr(smaller, field, heads)
    for name in ("num_key_value_heads", "num_kv_heads"):
        if hasattr(smaller, name):
            setattr(smaller, name, heads // heads_per_key(module, rule_of(module)))
    if hasattr(module, "head_dim"):
        smaller.head_dim = module.head_dim
    try:
        with torch.device("meta"):
            built = type(model)(smaller)
    except (ValueError, AssertionError):  # a width that does not divide into so many heads
        return None
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    return smaller if {name: tensor.shape for name, tensor in built.state_dict().items()} == shapes else None


def load_pruned(folder: str | Path, *, model: nn.Module | None = None, **options: Any) -> Any:
    """The model of a folder that `save_pruned` wrote, in evaluation; `heads_left(model)` says which heads it
    has.

    model: for a class that is none of Hugging Face's, a new model of it with all its heads, which loses those
    that are gone and takes the weights, in place. options: for transformers' `from_pretrained`, such as
    dtype, device_map or attn_implementation. Raises ValueError, in one line, at a folder without config.json,
    the field `headgates` or safetensors, or one whose parts do not fit each other or the model; ImportError
    if the extra `hf` is not installed."""
    folder = Path(folder)
    content = config_content(folder)
    if isinstance(content[FIELD], dict) and isinstance(name := content[FIELD].get("class"), str):
        if options:
            raise ValueError(
                f"{sorted(options)} are options of transformers, {folder} holds a {name}; give model= alone"
            )
        model = unpruned(model, name, folder)
        take_out(model, *field_content(content, folder))
        with reading(folder, name):
            missing, unexpected = needed_module("safetensors.torch").load_model(
                model, folder / _WEIGHTS, strict=False
            )
        check_keys(folder, {"missing_keys": missing, "unexpected_keys": unexpected})
        return model.eval()
    if model is not None:
        raise ValueError(f"{folder} holds a Hugging Face model, which transformers builds; leave model= out")
    transformers = hugging_face()
    cls = class_of(transformers, content, folder)
    heads, of = field_content(content, folder)
    with reading(folder, cls.__name__):
        known = {name: value for name, value in content.items() if name not in _CODE}
        config = cls.config_class.from_dict(known)

    class Pruned(cls):  # type: ignore[misc, valid-type]
        """Loses its heads before its weights are loaded, so that transformers does all the rest."""

        def __init__(self, config: Any, *args: Any, **more: Any):
            super().__init__(config, *args, **more)
            with torch.device("cpu"):  # transformers builds on the device meta, where a bool has no value
                take_out(self, heads, of)

        def _init_weights(self, module: nn.Module) -> None:
            # SigLIP's asks its attention for a weight that a refit took; all of these are in the folder
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
    if not isinstance(content, dict) or FIELD not in content:
        raise ValueError(
            f"{path} has no field {FIELD!r}: no heads were removed from this model, so load it with "
            "from_pretrained"
        )
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} has no weights in safetensors, and no others are read, as they may hold code; save "
            "it again with save_pruned"
        )
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder} has an adapter, which may name another model; merge it before save_pruned, or take "
            "adapter_config.json away"
        )
    return content


def class_of(transformers: Any, content: Mapping[str, Any], folder: Path) -> Any:
    names = content.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    cls = getattr(transformers, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(
            f"`architectures` in {folder / 'config.json'} must name one model class of transformers "
            f"{transformers.__version__}, "
            f"got {str(names)[:100]}"
        )
    return cls


def field_content(content: Mapping[str, Any], folder: Path) -> tuple[dict[str, list[int]], int | None]:
    field = content[FIELD]
    heads, of = (field.get("heads"), field.get("of")) if isinstance(field, dict) else (None, None)
    if not (
        isinstance(heads, dict)
        and all(map(is_rising, heads.values()))
        and (of is None or (isinstance(of, int) and 0 < of <= LARGEST_SITE))
    ):
        raise ValueError(
            f"{FIELD!r} in {folder / 'config.json'} must be like {{'heads': {{'encoder.0.enc-self': [0, "
            f"2]}}}}, the first numbers of the "
            f"heads that are left, in order; got {json.dumps(field)[:100]}"
        )
    return heads, of


def take_out(model: nn.Module, heads: Mapping[str, list[int]], of: int | None) -> None:
    """Remove the heads that are not listed. With `of` given the model was built without them, and only their
    numbers are noted."""
    rows = {}
    for name, row in heads.items():
        now, _ = named_site(find_sites(model, ALL_KINDS), name)
        site = HeadSite.at(now.kind, now.layer, of or now.heads)
        if row and row[-1] >= site.heads:
            raise ValueError(
                f"{name} has {site.heads} heads, 0 to {site.heads - 1}; head {row[-1]} is said to be left"
            )
        rows[site] = torch.zeros(site.heads, dtype=torch.bool)
        rows[site][torch.tensor(row, dtype=torch.long)] = True
    cut_heads(model, ~HeadMap(rows)) if of is None else set_heads_left(model, HeadMap(rows))
