"""Pruned folders of models that are none of Hugging Face's: the weights, the heads that are left and the name
of the class.

No code builds the model but the user's own: `load_pruned(folder, model=Mine(...))` takes a new one with all
its heads and any weights. config.json: {"headgates": {"class": "Mine", "heads": {"encoder.0.enc-self": [0, 2,
5], ...}}}
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .headmap import HeadMap
from .hold import hold_of
from .remove import heads_left

_WEIGHTS = "model.safetensors"


def safetensors() -> Any:
    """The module safetensors.torch. Raises ImportError, naming the extra to install, where it is missing."""
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError(
            f"pruned folders need safetensors ({error}): pip install 'headgates[hf]', in a checkout pip "
            "install '.[hf]'",
            name=error.name,
        ) from None


def write_plain(model: nn.Module, folder: Path, left: Mapping[str, list[int]], field: str) -> None:
    content = {field: {"class": type(model).__name__, "heads": left}}
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    safetensors().save_model(model, str(folder / _WEIGHTS))


def check_plain(model: nn.Module | None, name: str, folder: Path) -> nn.Module:
    """The model to load into. Raises ValueError unless it is one of the folder's class with all its heads and
    no gates."""
    if model is None:
        raise ValueError(
            f"{folder} holds the weights of a {name}, which is no Hugging Face model: give a new one, with "
            "all its heads, as "
            f"load_pruned(folder, model={name}(...))"
        )
    if type(model).__name__ != name:
        raise ValueError(f"{folder} holds the weights of a {name}, the model is a {type(model).__name__}")
    if any(hold_of(module) is not None for module in model.modules()):
        raise ValueError("the model has gates; detach(model) first")
    if heads_left(model) != HeadMap({site: [True] * site.heads for site in heads_left(model)}):
        raise ValueError("the model has lost heads already; give a new one, with all its heads")
    return model


def read_plain(model: nn.Module, folder: Path) -> nn.Module:
    """The model with the weights of the folder, in evaluation. Raises ValueError where they do not fit."""
    library = safetensors()
    try:
        missing, unexpected = library.load_model(model, folder / _WEIGHTS, strict=False)
    except (RuntimeError, OSError, importlib.import_module("safetensors").SafetensorError) as error:
        shown = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the weights in {folder} cannot be read as those of a {type(model).__name__}: {shown}"
        ) from error
    if missing or unexpected:
        raise ValueError(
            f"the weights in {folder} are not those of this {type(model).__name__}: "
            f"missing {sorted(missing)}, unexpected {sorted(unexpected)}"
        )
    return model.eval()
