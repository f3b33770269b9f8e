"""What a SOURCE is: a run folder, or PREFIX:PLACE for a model of another library. Nothing here imports
torch."""

import re

from headgates.configs.source import ForeignOptions

# prefix -> "module:function" of what reads PLACE: f(place, options) -> bridges.foreign.ForeignModel
SOURCES: dict[str, str] = {
    "fairseq": "headgates.bridges.fairseq:read",
    "hf": "headgates.bridges.hf:read",
    "marian": "headgates.bridges.marian:read",
}
OPTIONS = {"src": "src_lang", "tgt": "tgt_lang", "prefix": "prefix", "dict": "dictionaries"}


def is_foreign(source: object) -> bool:
    """Whether a SOURCE names a model of another library, by its prefix."""
    prefix, colon, _ = str(source).partition(":")
    return bool(colon) and prefix in SOURCES


def split_source(source: object) -> tuple[str, str, ForeignOptions]:
    """The prefix and the place of a foreign SOURCE, and the options that end it. Raises ValueError at one
    that is given twice."""
    prefix, _, rest = str(source).partition(":")
    place, *ends = re.split(f",({'|'.join(OPTIONS)})=", rest)
    given = {OPTIONS[name]: value for name, value in zip(ends[::2], ends[1::2], strict=True)}
    if 2 * len(given) < len(ends):
        raise ValueError(f"{source}: expected each of {'=, '.join(OPTIONS)}= once")
    return prefix, place, ForeignOptions(**given)
