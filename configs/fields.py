"""The settings of a configuration class: how one is declared, checked and listed (`train.lr`,
`model.d_model`, `lambda`)."""

import dataclasses
import math
import operator
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from itertools import islice
from typing import Any, Literal

from headgates.configs.did_you_mean import did_you_mean

SPELT = {"lam": "lambda"}  # field -> its name in flags and YAML: `lambda` is a reserved word in Python alone
LISTS = {
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
}  # what a setting of this type takes; others take names
LIMITS = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}
REQUIRED = dataclasses.MISSING  # for `setting`: a default that is none


@dataclasses.dataclass(frozen=True)
class About:
    """What a field says of itself: its text for `--help`, the range of a number, the known `items` of a list
    or `choices` of a name.

    positional: the words before the first flag, one or, for a list, any number; with REQUIRED as default they
    must be given. rare: no flag of its own; a file or `--set NAME=VALUE` gives it. more: only --help-all
    explains it. The first sentence of a text is what --help shows."""

    help: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    items: Iterable[str] | None = None
    choices: Iterable[str] | None = None
    positional: bool = False
    rare: bool = False
    more: bool = False


def setting(default: Any, help: str, **options: Any) -> Any:
    """A dataclass field; options: those of `About`. Mutable defaults are copied for every instance."""
    metadata = {"about": About(help, **options)}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_ranges(config: Any, prefix: str = "--") -> None:
    """Raises ValueError, naming the flag, where a number, alone or in a list, is out of its range or not
    finite, or a list with a range or known items holds an unknown or repeated one, or nothing in place of its
    default."""
    config_class: Any = type(config)
    for each in _settings_of(config_class):
        value, about = operator.attrgetter(each.attribute)(config), each.about
        flag = prefix.removeprefix("--") + each.name if about.rare else prefix + each.flag.removeprefix("--")
        named = zip(LIMITS, (about.at_least, about.above, about.at_most, about.below), strict=True)
        limits = {words: limit for words, limit in named if limit is not None}
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{flag}: expected a finite number, got {number}")
            if number is not None and any(not LIMITS[words](number, limits[words]) for words in limits):
                expected = " and ".join(f"{words} {limit:.10g}" for words, limit in limits.items())
                raise ValueError(f"{flag}: expected a number {expected}, got {number:.15g}")
        if about.choices is not None and value is not None and value not in about.choices:
            raise ValueError(
                f"{flag}: expected one of {', '.join(about.choices)}, got "
                f"{shortened(value)}{did_you_mean(str(value)[:60], about.choices)}"
            )
        if isinstance(value, list) and (limits or about.items is not None):
            items = list(about.items or value)
            unknown = [item for item in value if item not in items]
            if unknown or not (value or not each.default) or len(set(value)) < len(value):
                hint = did_you_mean(unknown[0], items) if unknown else ""
                expected = f"some of {', '.join(items)}" if about.items is not None else "numbers"
                got = ", ".join(map(str, value)) or "none"
                raise ValueError(
                    f"{flag}: expected {expected}, each once and separated by commas; got {got}{hint}"
                )


def check_plain_name(flag: str, name: str | None) -> None:
    """Raises ValueError where a name that is given cannot be that of a file or folder."""
    if name is not None and not (re.fullmatch(r"[^/\\\0]+", name) and name.strip(" .")):
        raise ValueError(f"{flag}: expected a plain name, without separators, got {name!r}")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A leaf of the configuration: its dotted name as in YAML (`train.lr`, `lambda`), its type, default and
    help."""

    name: str
    hint: Any
    default: Any = None
    about: About = About()
    group: str = ""  # heading in --help; "" for the top level
    attribute: str = ""  # of the configuration: lam, gates.lr
    required: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def has_flag(self) -> bool:
        return bool(self.about.help) and not self.about.rare

    @cached_property
    def is_list(self) -> bool:
        return typing.get_origin(self.hint) is list

    @property
    def display_name(self) -> str:
        """As it is called in the terminal: --train.lr, or SOURCE for words before the flags."""
        if self.about.rare:
            return self.name
        return self.name.upper() if self.about.positional else self.flag

    @cached_property
    def may_be_none(self) -> bool:
        return type(None) in typing.get_args(self.hint)

    @cached_property
    def inner(self) -> Any:
        """The type without its None."""
        if typing.get_origin(self.hint) in (
            types.UnionType,
            typing.Union,
        ):  # `str | None`; `Literal[...] | None` is the other
            return next(h for h in typing.get_args(self.hint) if h is not type(None))
        return self.hint

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """What a Literal takes, or the names of a table; none for any other type."""
        if self.about.choices is not None:
            return tuple(self.about.choices)
        return typing.get_args(self.inner) if typing.get_origin(self.inner) is Literal else ()

    @cached_property
    def item(self) -> Any:
        """The type of the value, or of a list's items: int, float, bool or str."""
        inner = typing.get_args(self.inner)[0] if typing.get_origin(self.inner) is list else self.inner
        return inner if inner in (int, float, bool) else str

    def takes(self, value: Any) -> bool:
        """Whether a value is of the setting's type; a whole number stands for text and for a number too, as
        YAML reads them."""
        if value is None:
            return self.may_be_none
        kinds = {float: (int, float), str: (str, int)}.get(self.item, (self.item,))
        values = value if isinstance(value, list) else [value]
        return (
            isinstance(value, list) == self.is_list
            and all(isinstance(v, kinds) and isinstance(v, bool) == (self.item is bool) for v in values)
            and (not self.choices or str(value) in self.choices)
        )

    def expected(self) -> str:
        """What the setting takes, in words."""
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        else:
            words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
            text = words[self.inner] if not self.is_list else LISTS.get(self.hint, "a list of names")
        return text + (" or null" if self.may_be_none else "")


def all_settings(config_class: type, group: str = "") -> Iterator[Setting]:
    """Yield all leaves of a configuration class and the dataclasses nested in it, in the order of the source,
    those of all scripts last."""
    hints, prefix = typing.get_type_hints(config_class), f"{group}." if group else ""
    for field in sorted(dataclasses.fields(config_class), key=lambda field: bool(field.kw_only)):
        hint, name = hints[field.name], prefix + SPELT.get(field.name, field.name)
        if dataclasses.is_dataclass(hint):
            yield from all_settings(typing.cast(type, hint), name)
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        required = default is dataclasses.MISSING
        if required:  # what stands there until it is given, of the right type
            default = [] if typing.get_origin(hint) is list else ""
        about = field.metadata.get("about", About())
        yield Setting(name, hint, default, about, group, prefix + field.name, required)


@cache
def _settings_of(config_class: type) -> tuple[Setting, ...]:
    """Those of `all_settings`, to be read alone: runs are checked by the hundred."""
    return tuple(all_settings(config_class))


def check_types(config_class: type, mapping: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the first, where a value of a mapping such as `to_dict` gives is not of its
    setting's type. What is missing or unknown passes: other versions have other settings."""
    for setting in _settings_of(config_class):
        holder, *groups = mapping, *setting.name.split(".")[:-1]
        for group in groups:
            holder = holder.get(group, {})
            if not isinstance(holder, Mapping):
                raise ValueError(f"{group}: expected settings below it, got {shortened(holder)}")
        name = setting.name.rpartition(".")[2]
        if name in holder and not setting.takes(holder[name]):
            raise ValueError(f"{setting.name}: expected {setting.expected()}, got {shortened(holder[name])}")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values under the names that YAML uses."""
    result = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        result[SPELT.get(field.name, field.name)] = (
            to_dict(value) if dataclasses.is_dataclass(value) else value
        )
    return result


class Brief(reprlib.Repr):
    """A repr that looks at the first parts of a value alone: one of a file may hold one list a billion times,
    or itself."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = 12
        self.maxstring = 200

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0 and x:
            return "{...}"
        parts = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), 12)]
        return "{" + ", ".join(parts) + ", ..." * (len(x) > 12) + "}"

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if abs(x) < 10**60 else "a number of more than 60 digits"

    def repr_instance(self, x: Any, level: int) -> str:
        return repr(x) if isinstance(x, float | bool | type | None) else f"a {type(x).__name__}"


def shortened(value: Any) -> str:
    """A value as an error message quotes it: at most 60 characters."""
    text = Brief().repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(error: BaseException) -> str:
    """What an error says, on one line of at most 400 characters; its type where it says nothing."""
    return " ".join(str(error).split())[:400] or type(error).__name__
