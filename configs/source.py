"""Settings of every script that takes a SOURCE: how a model of another library is read, and the text that it
is used with."""

from dataclasses import dataclass, fields
from typing import Any

from headgates.configs.fields import setting

# prefix -> "module:function" of what reads PLACE: f(place, options) -> models.foreign.ForeignModel
SOURCES: dict[str, str] = {
    "fairseq": "headgates.bridges.fairseq:read",
    "hf": "headgates.bridges.hf:read",
    "marian": "headgates.bridges.marian:read",
}


def is_foreign(source: object) -> bool:
    """Whether a SOURCE names a model of another library, by its prefix."""
    prefix, colon, _ = str(source).partition(":")
    return bool(colon) and prefix in SOURCES


@dataclass(frozen=True, kw_only=True)
class ForeignOptions:
    """How a model of another library is read."""

    src_lang: str | None = setting(
        None, "language that a model of many languages reads, as the model calls it, such as eng_Latn"
    )
    tgt_lang: str | None = setting(None, "language that it writes")
    dictionaries: str | None = setting(
        None, "fairseq: folder of dict.SRC.txt, dict.TGT.txt and BPE codes; default the checkpoint's own"
    )


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ForeignOptions):
    """The same, with a text: one run folder is made for each."""

    data: str | None = setting(
        None, "text for a model of another library: a named corpus or a folder; runs have their own"
    )
    src: str | None = setting(None, "source language of --data: the files' suffix")
    tgt: str | None = setting(None, "target language of --data")
    data_dir: str | None = setting(None, "folder with local copies of named corpora; default the run's own")
    runs: str = setting(
        "runs", "folder in which the run of a model of another library is made, and found again"
    )


def foreign_options(config: ForeignOptions) -> dict[str, Any]:
    """The options that were given, by name."""
    given = {field.name: getattr(config, field.name) for field in fields(ForeignOptions)}
    return {name: value for name, value in given.items() if value is not None}
