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

from .attach_modes import check_ungated
from .remove import heads_left

_WEIGHTS = "model.safetensors"


def library(name: str) -> Any:
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


def write_plain(model: nn.Module, folder: Path, left: Mapping[str, list[int]], field: str) -> None:
    content = {field: {"class": type(model).__name__, "heads": left}}
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    library("safetensors.torch").save_model(model, str(folder / _WEIGHTS))


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
    check_ungated(model)
    if not heads_left(model).flat().all():
        raise ValueError("the model has lost heads already; give a new one, with all its heads")
    return model


def read_plain(model: nn.Module, folder: Path) -> nn.Module:
    """The model with the weights of the folder, in evaluation. Raises ValueError where they do not fit."""
    load = library("safetensors.torch").load_model
    try:
        missing, unexpected = load(model, folder / _WEIGHTS, strict=False)
    except (RuntimeError, OSError, library("safetensors").SafetensorError) as error:
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
