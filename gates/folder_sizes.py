"""What a folder of Hugging Face's form says of sizes, held against its bytes before anything is built."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

WEIGHT_ENDINGS = (".safetensors", ".bin")
MOST_LAYERS = 1024  # of a stack, at most: before a model is built nothing else says how many there are
SPARE = 2**26  # numbers of a model that need not be in its file: tables of positions, a new head


def check_layers(settings: Mapping[str, Any], most: int = MOST_LAYERS) -> None:
    """Raises ValueError where settings say more layers than there can be: their modules alone would fill the
    memory, whatever their widths."""
    for name, number in settings.items():
        if "layers" in str(name)[:60] and isinstance(number, int) and number > min(most, MOST_LAYERS):
            raise ValueError(f"{str(name)[:60]} is {number:.3g}, expected at most {min(most, MOST_LAYERS)}")


def check_folder(folder: str | Path, settings: Mapping[str, Any], build: Callable[[], nn.Module]) -> None:
    """Raises ValueError where the settings of a model need more than the bytes of its weights, or an index of
    the weights names a file that does not lie beside it.

    build: makes the model, here without memory."""
    for index in Path(folder).glob("*.index.json"):
        try:
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{index} is no index of weights; copy it again") from error
        if outside := next((name for name in named if not is_plain(name)), None):
            raise ValueError(f"{index} names {str(outside)[:60]!r}, a file outside the folder")
    check_layers(settings)
    there = sum(path.stat().st_size for end in WEIGHT_ENDINGS for path in Path(folder).glob(f"*{end}"))
    with torch.device("meta"):
        model = build()
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers())}
    if (said := sum(each.numel() for each in tensors.values())) > there + SPARE:
        raise ValueError(f"config.json says {said:,} numbers, and the weights have {there:,} bytes")


def is_plain(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name
