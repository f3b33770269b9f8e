"""The result of reading another library's model: a `Translator` of ours, from which an ordinary run folder is made."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.translator import Translator


@dataclass(frozen=True)
class ForeignModel:
    """A translation model that somebody else trained.

    files: all that decide what the model does; their hash is how it is found again. tokenizer_files: name in a run folder -> file.
    settings: of a run's config.yaml, such as src, tgt and search."""

    name: str
    translator: Translator
    files: list[Path]
    tokenizer_files: dict[str, Path]
    settings: dict[str, Any] = field(default_factory=dict)
