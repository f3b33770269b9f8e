"""Checkpoints: plain tensors and the architecture beside them, loadable with `weights_only=True`, written
whole or not at all."""

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headgates.configs.fields import shortened
from headgates.configs.own_file import check_unpacked, own_file
from headgates.configs.program import program
from headgates.data.atomic_file import atomic_file
from headgates.data.ranks import is_first
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import reworded
from headgates.gates import ALL_KINDS, HeadMap, heads_left, set_heads_left
from headgates.gates.depth import layers_left, set_layers_left
from headgates.gates.folder_sizes import check_layers
from headgates.models.description import read_description
from headgates.models.transformer import Transformer

SHARED = 8  # tensors of a file that may be one: tables that are tied
M = TypeVar("M", bound=nn.Module)
COPY_AGAIN = "copy it again, or repeat the run with --fresh"


def save_file(path: str | Path, content: dict[str, Any]) -> None:
    """Write a dict of plain tensors and plain values with torch.save, whole or not at all
    (data/atomic_file.py)."""
    with atomic_file(path) as file:
        if is_first():  # the other ranks need not even serialise it
            torch.save(content, file)


def load_file(path: str | Path, *, mapped: bool = False) -> dict[str, Any]:
    """Return the dict that `save_file` wrote. mapped: the tensors stay in the file until they are read; what
    is written to them is this process's own.

    Raises ValueError if the file is missing, cut short or holds more than plain tensors."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"no checkpoint at {path}; is the run finished? ({program('fit')} ... --resume continues it)"
        )
    check_packed(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    # strange bytes send torch's unpickler anywhere: IndexError, KeyError, EOFError without a word
    except Exception as error:
        reason = (
            str(error).strip().split("\n")[0].split(". ")[0] or type(error).__name__
        )  # what follows is addressed to torch's makers
        raise ValueError(
            f"{path} is not a whole checkpoint of plain tensors ({reason}); {COPY_AGAIN}"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds a {type(content).__name__}; expected a dict with 'architecture' and 'model'"
        )
    return content


def check_packed(path: Path) -> None:
    """Raise ValueError where a checkpoint is a .zip that unpacks to many times its bytes."""
    with reworded(f"{path} is not a whole checkpoint of plain tensors", COPY_AGAIN):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                check_unpacked(path, sum(each.file_size for each in file.infolist()), path.stat().st_size)


def check_bytes(path: str | Path) -> None:
    """Raise ValueError unless every byte of a checkpoint is the one that was written, by the checksums in the
    file: torch's own reader does not look at them."""
    with (
        reworded(f"{path} is not a whole checkpoint of plain tensors", COPY_AGAIN),
        zipfile.ZipFile(path) as file,
    ):
        if damaged := file.testzip():
            raise ValueError(f"the checksum of {damaged} differs")


def architecture(model: Transformer) -> dict[str, Any]:
    """Return the description from which `build` makes the same model. heads_left: the heads and neurons that
    remain, layers_left: the layers, if some were removed."""
    left = heads_left(model, ALL_KINDS)
    remaining = {site.name: row.tolist() for site, row in left.items() if not row.all()}
    layers = {stack: row for stack, row in layers_left(model).items() if not all(row)}
    return {
        "model": asdict(model.config),
        "source_vocab": model.source_vocab,
        "target_vocab": model.target_vocab,
        "source_specials": as_json(model.source_specials),
        "target_specials": as_json(model.target_specials),
        "heads": model.heads,
        **({"heads_left": remaining} if remaining else {}),
        **({"layers_left": layers} if layers else {}),
    }


def as_json(specials: SpecialTokens) -> dict[str, Any]:
    """The ids by their names, in lists as a file has them."""
    return asdict(specials) | {"forced": list(specials.forced)}


def build(description: dict[str, Any], device: str = "cpu") -> Transformer:
    """Return an untrained model of this description, as `architecture` gives it. Raises ValueError if it
    lacks something, or describes no model."""
    found = read_description(description)
    with reworded("cannot read the architecture of this checkpoint", "it was written by another version"):
        with torch.device(device):
            model = Transformer(
                found.config,
                found.source_vocab,
                found.target_vocab,
                found.heads,
                source_specials=found.source_specials,
                target_specials=found.target_specials,
            )
        set_layers_left(model, found.layers_left)
        set_heads_left(model, HeadMap.from_json(found.heads_left))
        return model


def check_tensors(weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless these are plain tensors whose numbers are all there: none is sparse, and none
    has one number that stands for many, alone or with others."""
    storages, total = dict[int, int](), 0
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(f"{shortened(name)} is no plain tensor")
        storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
        if size > storage.nbytes():
            raise ValueError(f"{shortened(name)} says shape {tuple(tensor.shape)}, and has fewer numbers")
        storages[storage.data_ptr()] = storage.nbytes()
        total += size
    if total > SHARED * sum(storages.values()):
        raise ValueError(f"tensors of {total:,} bytes share {sum(storages.values()):,}")


class Undrawn(TorchFunctionMode):
    """Leaves new weights as they are: to draw them without memory, torch imports torch._dynamo, which takes
    longer than all else that translating imports."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return kwargs.get("tensor", args[0] if args else None)
        if func is torch.arange:  # of sinusoids
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def filled(make: Callable[[str], M], settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> M:
    """The model that `make` builds on a device by these settings, with the weights, in evaluation mode.

    It is built without memory first: what a file says of sizes is held against its weights before they are
    taken. A Transformer then takes the tensors themselves. Raises ValueError where it says too much."""
    check_tensors(weights)
    check_layers(settings, len(weights))
    with Undrawn():
        model = make("meta")
    if isinstance(model, Transformer):
        model.assign(weights)
        return model
    model.load_state_dict(dict(weights), assign=True)
    model = make("cpu")
    model.load_state_dict(weights)
    return model.eval()


def save_model(path: str | Path, model: Transformer, **extra: Any) -> None:
    """Save the weights and architecture of a model without gates (detach them first)."""
    save_file(path, {"architecture": architecture(model), "model": model.state_dict(), **extra})


def save_beside(path: Path, model: Transformer, weights: Path | None, name: str) -> None:
    """Save a model whose weights are in a file of this name beside `path`: a link to the file `weights` that
    another `save_beside` wrote of the same weights, if there is one."""
    if weights is None:
        save_file(path.with_name(name), {"model": model.state_dict()})
    else:
        try:
            os.link(weights, path.with_name(name))
        except OSError:  # another file system, or one without links
            shutil.copyfile(weights, path.with_name(name))
    save_file(path, {"architecture": architecture(model), "model": name})


def load_model(path: str | Path) -> Transformer:
    """Return the model that `save_model` or `save_beside` wrote, in evaluation mode, its weights mapped from
    the file. Raises ValueError at a broken file."""
    content = load_file(path, mapped=True)
    description, weights = content.get("architecture"), content.get("model")
    if isinstance(weights, str):
        weights = load_file(own_file(Path(path).parent, weights), mapped=True).get("model")
    if not isinstance(description, dict) or not isinstance(weights, dict):
        raise ValueError(f"{path} holds {sorted(content)}; expected 'architecture' and 'model', each a dict")
    what, broken = f"the weights in {path} do not fit its architecture", (RuntimeError, AttributeError)
    with reworded(what, "repeat the run with --fresh", ValueError, KeyError, TypeError, *broken):
        return filled(partial(build, description), description["model"], weights)


def weights_digest(model: nn.Module) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the model's weights."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()[:12]


def previous_checkpoint(last: str | Path) -> Path:
    """Where the checkpoint before the last is kept."""
    return Path(last).with_suffix(".previous.pt")
