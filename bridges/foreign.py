"""A model of another library, and the `Translator` of ours that it becomes, from which an ordinary run folder
is made; and what all of these libraries have in common. Letters: D model width, L positions."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.configs.fields import shortened
from headgates.configs.settings import ModelConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import reworded
from headgates.gates import FFN_KINDS
from headgates.models import checkpoint
from headgates.models.description import table_length
from headgates.models.positions import sinusoids
from headgates.models.transformer import ACTIVATIONS, Transformer
from headgates.models.translator import Translator

STACK_OF_SIDE = {"source": "encoder", "target": "decoder"}  # of each side

OUR_TABLES = ("source_embedding", "target_embedding", "output")

# ours -> fairseq's, in a layer and outside; Hugging Face's models, which began as fairseq's, have `model.`
# before
THEIR_NAMES = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_residual.norm": "final_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "source_embedding": "encoder.embed_tokens",
    "target_embedding": "decoder.embed_tokens",
    "source_positions": "encoder.embed_positions",
    "target_positions": "decoder.embed_positions",
    "source_norm": "encoder.layernorm_embedding",
    "target_norm": "decoder.layernorm_embedding",
    "encoder.norm": "encoder.layer_norm",
    "decoder.norm": "decoder.layer_norm",
    "output.": "decoder.output_projection.",
}


@dataclass(frozen=True)
class Converted:
    """A foreign model as one of ours.

    tokenizer_files: name in a run folder, vocab*, -> file. tokenizer: the content of vocab.json, which says
    of what kind the tokenizer is (data.vocab.VOCABULARIES); empty for SentencePiece models by our own names.
    settings: of a run's config.yaml, such as src and search."""

    translator: Translator
    tokenizer_files: Mapping[str, Path]
    tokenizer: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ForeignModel:
    """A translation model that somebody else trained.

    files: all that decide what the model does; their hash is how its run is found again. convert: reads them,
    which takes its time; raises ValueError where they are broken or hold what our Transformer has not."""

    name: str
    files: list[Path]
    convert: Callable[[], Converted]


def fairseq_name(name: str) -> str:
    """What fairseq calls our parameter of this name."""
    return reduce(lambda known, pair: known.replace(*pair), THEIR_NAMES.items(), name)


def shared_tables(source: Tensor, target: Tensor, output: Tensor) -> str:
    """Our `embeddings`: which of the three tables (V, D) are one."""
    if not target.equal(output):
        return "separate"
    return "tied" if source.equal(target) else "tied-decoder"


def our_activation(name: Any, field: str) -> str:
    """Our name of an activation that config.json names in a field. Raises ValueError at one that ours has
    not."""
    found = "swish" if name == "silu" else name
    if found not in ACTIVATIONS:
        raise ValueError(
            f"{field} {shortened(name)} in config.json is not one of ours: {', '.join(ACTIVATIONS)}"
        )
    return str(found)


def position_table(model: Transformer, side: str) -> Tensor:
    """The vectors (L, D) of the model's positions, learned or not."""
    config = model.config
    learned = config.positions == "learned"
    return getattr(model, f"{side}_positions").weight if learned else sinusoids(config, table_length(config))


def filled_model(
    config: ModelConfig,
    sizes: Sequence[int],
    state: Mapping[str, Tensor],
    origin: Path,
    *,
    specials: Sequence[SpecialTokens],
) -> Transformer:
    """The model of these settings with these weights, in evaluation mode. sizes, specials: of the source's
    and the target's vocabulary. Raises ValueError, naming the file that all is from, where they do not fit
    each other."""

    def make(device: str) -> Transformer:
        with torch.device(device):
            source, target = specials
            return Transformer(config, sizes[0], sizes[1], source_specials=source, target_specials=target)

    what = f"{origin} does not hold the weights of our Transformer with its settings"
    with reworded(what, "is it whole?", RuntimeError, ValueError, TypeError):
        return checkpoint.filled(make, asdict(config), state)


def with_one_width(model: Transformer, multiple: int = 1) -> Transformer:
    """The model as a library needs it whose feed-forward layers have one width in each stack. Where neurons
    were removed it is a copy, whose layers have as many as the widest, and more up to a multiple: those that
    are added give nothing."""
    if not any(site.endswith(FFN_KINDS) for site in model.heads):
        return model
    model, sizes = copy.deepcopy(model), dict[str, Any]()
    for stack, setting, kind in (("encoder", "ffn", "enc-ffn"), ("decoder", "decoder_ffn", "dec-ffn")):
        parts = [layer.feed_forward for layer in getattr(model, stack).layers]
        widest = max(1, *(part.outer.in_features for part in parts))
        width = min(widest + -widest % multiple, model.config.heads_of_kinds[kind])
        for part in parts:
            missing = width - part.outer.in_features
            for linear, name, by in (
                (part.inner, "weight", (0, 0, 0, missing)),
                (part.inner, "bias", (0, missing)),
                (part.outer, "weight", (0, missing)),
            ):
                setattr(linear, name, nn.Parameter(F.pad(getattr(linear, name).detach(), by)))
            part.inner.out_features = part.outer.in_features = width
        sizes[setting] = width
    same = sizes["ffn"] == sizes["decoder_ffn"]
    model.config = replace(model.config, **sizes | {"decoder_ffn": 0} if same else sizes)
    return model
