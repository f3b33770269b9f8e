"""Checkpoints: plain tensors and the architecture beside them, loadable with `weights_only=True`, written
whole or not at all."""

import hashlib
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headgates.configs.fields import check_ranges
from headgates.configs.schema import ModelConfig
from headgates.data.atomic_file import atomic_file
from headgates.data.ranks import is_first
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import reworded
from headgates.gates import HeadMap, heads_left, set_heads_left
from headgates.models.transformer import Transformer

LARGEST_SINUSOIDS = 2**28  # numbers, 1 GiB: their table is computed and in no file, so nothing else bounds it
COPY_AGAIN = "copy it again, or repeat the run with --fresh"


def save_file(path: str | Path, content: dict[str, Any]) -> None:
    """Write a dict of plain tensors and plain values with torch.save, whole or not at all
    (data/atomic_file.py)."""
    with atomic_file(path) as file:
        if is_first():  # the other ranks need not even serialise it
            torch.save(content, file)


def load_file(path: str | Path) -> dict[str, Any]:
    """Return the dict that `save_file` wrote. Raises ValueError if the file is missing, cut short or holds
    more than plain tensors."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}; is the run finished? (fit.py ... --resume continues it)")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
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
    """Return the description from which `build` makes the same model. heads_left: the heads that remain, if
    some were removed."""
    remaining = {site.name: row.tolist() for site, row in heads_left(model).items() if not row.all()}
    return {
        "model": asdict(model.config),
        "source_vocab": model.source_vocab,
        "target_vocab": model.target_vocab,
        "source_specials": as_json(model.source_specials),
        "target_specials": as_json(model.target_specials),
        "heads": model.heads,
        **({"heads_left": remaining} if remaining else {}),
    }


def as_json(specials: SpecialTokens) -> dict[str, Any]:
    """The ids by their names, in lists as a file has them."""
    return asdict(specials) | {"forced": list(specials.forced)}


def build(description: dict[str, Any], device: str = "cpu") -> Transformer:
    """Return an untrained model of this description, as `architecture` gives it. Raises ValueError if it
    lacks something, or describes no model."""
    with reworded("cannot read the architecture of this checkpoint", "it was written by another version"):
        config = ModelConfig(**description["model"])
        source, target = (SpecialTokens(**description[f"{side}_specials"]) for side in ("source", "target"))
        check_ranges(config, "model.")
        if config.positions != "learned" and config.max_positions * config.d_model > LARGEST_SINUSOIDS:
            raise ValueError(f"{config.max_positions} positions of width {config.d_model} fill the memory")
        sizes = description["source_vocab"], description["target_vocab"]
        with torch.device(device):
            model = Transformer(
                config, *sizes, description.get("heads"), source_specials=source, target_specials=target
            )
        set_heads_left(model, HeadMap.from_json(description.get("heads_left", {})))
        return model


def check_sizes(description: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Raise ValueError where the description says what the bytes of the weights cannot hold: more layers than
    tensors, whose modules alone would fill the memory, or one number that stands for many."""
    layers = sum(int(description["model"][f"{side}_layers"]) for side in ("encoder", "decoder"))
    if layers > len(weights):
        raise ValueError(f"{layers} layers, and {len(weights)} tensors for all of them")
    for name, tensor in weights.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name} says shape {tuple(tensor.shape)}, and has fewer numbers")


def save_model(path: str | Path, model: Transformer, **extra: Any) -> None:
    """Save the weights and architecture of a model without gates (detach them first)."""
    save_file(path, {"architecture": architecture(model), "model": model.state_dict(), **extra})


def load_model(path: str | Path) -> Transformer:
    """Return the model that `save_model` wrote, in evaluation mode. Raises ValueError at a broken file."""
    content = load_file(path)
    description, weights = content.get("architecture"), content.get("model")
    if not isinstance(description, dict) or not isinstance(weights, dict):
        raise ValueError(f"{path} holds {sorted(content)}; expected 'architecture' and 'model', each a dict")
    what, broken = f"the weights in {path} do not fit its architecture", (RuntimeError, AttributeError)
    with reworded(what, "repeat the run with --fresh", ValueError, KeyError, TypeError, *broken):
        check_sizes(description, weights)
        # first without memory: a foreign description may say any size
        build(description, "meta").load_state_dict(dict(weights), assign=True)
        model = build(description)
        model.load_state_dict(weights)
    return model.eval()


def weights_digest(model: nn.Module) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the model's weights."""
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode() + tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:12]


def previous_checkpoint(last: str | Path) -> Path:
    """Where the checkpoint before the last is kept."""
    return Path(last).with_suffix(".previous.pt")
