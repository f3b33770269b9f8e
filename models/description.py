"""What a checkpoint or an exported folder says of its model, from which the model is made. Importing this
needs no torch."""

from dataclasses import dataclass, field
from typing import Any

from headgates.configs.fields import check_ranges, shortened
from headgates.configs.settings import ModelConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import reworded
from headgates.data.vocab import Vocabulary

POSITIONS = 1024  # rows of a table in the place of sinusoids, or as many as the model has if that is more


@dataclass(frozen=True)
class Description:
    """Settings, sizes of the vocabularies and special tokens. heads: or neurons, of each site that has fewer
    than the settings say; heads_left, layers_left: which remain, where some were removed."""

    config: ModelConfig
    source_vocab: int
    target_vocab: int
    source_specials: SpecialTokens
    target_specials: SpecialTokens
    heads: dict[str, int] = field(default_factory=dict)
    heads_left: dict[str, Any] = field(default_factory=dict)
    layers_left: dict[str, Any] = field(default_factory=dict)


def read_description(content: dict[str, Any]) -> Description:
    """The content that `models.checkpoint.architecture` gives. Raises ValueError if it lacks something, or
    describes no model."""
    with reworded("cannot read the architecture of this checkpoint", "it was written by another version"):
        config = ModelConfig(**content["model"])
        check_ranges(config, "model.")
        source, target = (SpecialTokens(**content[f"{side}_specials"]) for side in ("source", "target"))
        sizes = int(content["source_vocab"]), int(content["target_vocab"])
        heads = content.get("heads") or {}
        largest = {"ffn": max(config.ffn, config.decoder_ffn or 0)}  # by how a site's name ends
        if not all(0 <= n <= largest.get(name[-3:], config.d_model) for name, n in heads.items()):
            raise ValueError(f"it says {shortened(heads)} heads at a width of {config.d_model}")
        left = (content.get(name) or {} for name in ("heads_left", "layers_left"))
        return Description(config, *sizes, source, target, heads, *left)


def check_size(side: str, pieces: int, vocab: Vocabulary) -> None:
    """Raises ValueError where a vocabulary has another number of pieces than the model's embedding."""
    if len(vocab) != pieces:
        raise ValueError(
            f"the model has {pieces} pieces on the {side} side, and its vocabulary {vocab.path} has "
            f"{len(vocab)}: it is another model's; "
            "copy the right one, or repeat the run with --fresh"
        )


def most_tokens(config: ModelConfig) -> int | None:
    """Of a line, its end counted; None where positions have no end."""
    return config.max_positions if config.positions == "learned" else None


def table_length(config: ModelConfig) -> int:
    """How many positions are written where a library has a table of them."""
    return most_tokens(config) or max(config.max_positions, POSITIONS)
