"""A checkpoint of fairseq as plain options and tensors, read without running anything in it.

A checkpoint is a pickle, zipped by torch.save or, in old files, not. The reader admits tensors, plain
containers and argparse.Namespace, in which fairseq keeps its options; numpy's numbers, which only its
statistics hold, are passed over. Anything else is refused by its name.
"""

import argparse
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Unread:
    """Stands where the statistics of a training run hold numbers of numpy: takes everything and keeps
    nothing."""

    def __init__(self, *content: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


NUMPY = ["ndarray", "dtype"]
NUMPY += [f"{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")]
ADMITTED: list[Any] = [argparse.Namespace, *((Unread, f"numpy.{name}") for name in NUMPY)]
STACK_NORM_SINCE = {"encoder": 2, "decoder": 3}  # lowest `version` of a stack whose norm at the end counts
NO_WEIGHTS = re.compile(r".*\.(version|embed_positions\._float_tensor|embed_positions\.weights)")
OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of its model.

    options: by their flat names, encoder_embed_dim and so on. weights: by the names that fairseq gives them
    today, fp32. stack_norms: for encoder and decoder, whether fairseq would use a norm at its end."""

    path: Path
    options: dict[str, Any]
    weights: dict[str, Tensor]
    stack_norms: dict[str, bool]


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises ValueError at a file that is missing, broken, holds more than is admitted, or is no checkpoint
    of a translation model."""
    content = safely_loaded(path)
    tensors = content.get("model")
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: under 'model' it has no dict of tensors; it has {named(content)}"
        )
    versions = {stack: tensors.get(f"{stack}.version", torch.ones(1)).flatten() for stack in STACK_NORM_SINCE}
    return Checkpoint(
        path,
        flat_options(content, path),
        current_names({str(name): tensor.float() for name, tensor in tensors.items()}, path),
        {
            stack: bool(len(version)) and float(version[0]) >= STACK_NORM_SINCE[stack]
            for stack, version in versions.items()
        },
    )


def safely_loaded(path: Path) -> dict[str, Any]:
    """The dict that the file holds."""
    if path.is_dir():
        found = ", ".join(sorted(file.name for file in path.glob("*.pt"))) or "none"
        raise ValueError(
            f"{path} is a folder; give a checkpoint in it, fairseq:{path}/FILE.pt: it has {found}"
        )
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    try:
        with torch.serialization.safe_globals(ADMITTED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about the pickle's protocol: it reads it or raises
            content = torch.load(path, map_location="cpu", weights_only=True)
    # strange bytes send torch's unpickler anywhere: IndexError, KeyError, EOFError without a word
    except Exception as error:
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} holds {refused[1]}, which is not read: it could run code. Only tensors, plain containers and argparse.Namespace "
                "are; with fairseq itself, save the checkpoint again without it"
            ) from None
        words = re.search(r"WeightsUnpickler error: (.*)", str(error))
        reason = (words[1] if words else str(error)).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is not a whole checkpoint ({reason}); copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: it holds a {type(content).__name__}, not a dict"
        )
    return content


def named(content: Mapping[Any, Any]) -> str:
    return ", ".join(sorted(map(str, content))[:12]) or "nothing"


def flat_options(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The options of task and model by their flat names: of `args` in old files, of `cfg` in newer ones."""
    cfg = content.get("cfg")
    if isinstance(cfg, dict):
        options = {
            **plain(cfg.get("task")),
            **plain(cfg.get("model")),
            "task": plain(cfg.get("task")).get("_name"),
        }
    else:
        options = plain(content.get("args"))
    if not options:
        raise ValueError(
            f"{path} does not say what its model is: it has neither 'cfg' nor 'args' with options; it has {named(content)}"
        )
    for stack in ("encoder", "decoder"):  # fairseq-hydra-train nests them
        options |= {f"{stack}_{name}": value for name, value in plain(options.pop(stack, None)).items()}
    return options


def plain(options: Any) -> dict[str, Any]:
    """The options of a Namespace or a dict; none of anything else."""
    return (
        dict(options)
        if isinstance(options, dict)
        else dict(vars(options))
        if isinstance(options, argparse.Namespace)
        else {}
    )


def current_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights under the names of today: fused projections split into q, k, v, numbered norms named, the
    output a matrix of its own."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if NO_WEIGHTS.fullmatch(name):
            continue
        if fused := re.fullmatch(r"(.*_attn)\.in_proj_(weight|bias)", name):
            if len(tensor) % 3:
                raise ValueError(f"{path}: {name} has {len(tensor)} rows, expected those of q, k and v")
            parts = zip("qkv", tensor.chunk(3), strict=True)
            found |= {f"{fused[1]}.{letter}_proj.{fused[2]}": part for letter, part in parts}
        elif (
            norm := re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name)
        ) and int(norm[3]) < len(OLD_NORMS[norm[2]]):
            found[f"{norm[1]}.{OLD_NORMS[norm[2]][int(norm[3])]}.{norm[4]}"] = tensor
        elif name == "decoder.embed_out":
            found["decoder.output_projection.weight"] = tensor
        else:
            found[name] = tensor
    tied = found.get("decoder.embed_tokens.weight")
    if tied is not None:
        found.setdefault("decoder.output_projection.weight", tied)
    return found
