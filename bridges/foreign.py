"""A model of another library, and the `Translator` of ours that it becomes, from which an ordinary run folder
is made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgates.models.translator import Translator


@dataclass(frozen=True)
class Converted:
    """A foreign model as one of ours.

    tokenizer_files: name in a run folder, vocab*, -> file. tokenizer: the content of vocab.json, which says
    of what kind the tokenizer is (data.vocab.VOCABULARIES); empty for SentencePiece models by our own names.
    settings: of a run's
    config.yaml, such as src and search."""

    translator: Translator
    tokenizer_files: dict[str, Path]
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
