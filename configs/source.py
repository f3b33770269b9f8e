"""What a SOURCE is (a run folder, or PREFIX:PLACE for a model of another library), and the settings of the
text that such a model is used with."""

import re
from dataclasses import dataclass

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


@dataclass(frozen=True)
class ForeignOptions:
    """How a model of another library is read, as the end of a SOURCE says, such as
    `hf:NAME,src=eng_Latn,tgt=deu_Latn`."""

    src_lang: str | None = None  # src=: the language that it reads, as the model calls it
    tgt_lang: str | None = None  # tgt=: that it writes
    dictionaries: str | None = None  # dict=: fairseq's folder of dict.SRC.txt, dict.TGT.txt and BPE codes


OPTIONS = {"src": "src_lang", "tgt": "tgt_lang", "dict": "dictionaries"}


def split_source(source: object) -> tuple[str, str, ForeignOptions]:
    """The prefix and the place of a foreign SOURCE, and the options that end it. Raises ValueError at one
    that is given twice."""
    prefix, _, rest = str(source).partition(":")
    place, *ends = re.split(f",({'|'.join(OPTIONS)})=", rest)
    given = {OPTIONS[name]: value for name, value in zip(ends[::2], ends[1::2], strict=True)}
    if 2 * len(given) < len(ends):
        raise ValueError(f"{source}: expected each of src=, tgt= and dict= once")
    return prefix, place, ForeignOptions(**given)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The text of a model of another library: one run folder is made for each."""

    data: str | None = setting(
        None, "text for a model of another library: a named corpus or a folder; runs have their own"
    )
    src: str | None = setting(None, "source language of --data: the files' suffix")
    tgt: str | None = setting(None, "target language of --data")
    data_dir: str | None = setting(None, "folder with local copies of named corpora; default the run's own")
    runs: str = setting(
        "runs", "folder in which the run of a model of another library is made, and found again"
    )
