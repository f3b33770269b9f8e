"""A short sentence, an image or a sound on which a Hugging Face model can be run, by its configuration."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # arguments of a forward pass, and those by name


def short_example(model: nn.Module) -> Inputs | None:
    """The arguments of a forward pass, None for a model of another library or one whose configuration does
    not tell what it takes."""
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", "")
    weight = next((each for each in model.parameters() if each.is_floating_point()), None)
    if config is None or weight is None or weight.device.type == "meta":
        return None
    words = getattr(config, "vocab_size", 0) or getattr(getattr(config, "decoder", None), "vocab_size", 0)
    ids = torch.arange(3, 10, device=weight.device)[None] % max(words, 1)
    if name == "input_ids":
        found = ids if words > 1 else None
    elif shape := shape_of(name, getattr(config, "encoder", config)):
        found = torch.arange(math.prod(shape)).sin().view(shape).to(weight)
    else:
        found = None
    both = getattr(config, "is_encoder_decoder", False)
    more = {"decoder_input_ids": ids.flip(1)} if both else {}
    return None if found is None else ((), {name: found, **more})


def shape_of(name: str, config: Any) -> Sequence[int]:
    """The shape of the argument `name` for one image or sound, empty where the configuration does not say."""
    said = {field: value for field, value in vars(config).items() if value}
    if name == "pixel_values" and "image_size" in said:
        size = said["image_size"]
        sides = [size, size] if isinstance(size, int) else size
        frames = [said["num_frames"]] if "num_frames" in said else []  # of a film
        return 1, *frames, said.get("num_channels", 3), *sides
    if name == "input_values" and "conv_stride" in said:  # samples; convolutions make frames of them
        return 1, 8 * math.prod(said["conv_stride"]) + sum(said["conv_kernel"])
    if name == "input_values" and {"max_length", "num_mel_bins"} <= said.keys():
        return 1, said["max_length"], said["num_mel_bins"]
    if name == "input_features" and "input_feat_per_channel" in said:
        return 1, 32, said["input_feat_per_channel"] * said.get("input_channels", 1)
    if name == "input_features" and "feature_projection_input_dim" in said:
        return 1, 16, said["feature_projection_input_dim"]
    if name == "input_features" and {"num_mel_bins", "max_source_positions"} <= said.keys():
        return 1, said["num_mel_bins"], 2 * said["max_source_positions"]  # Whisper takes this length alone
    return ()
