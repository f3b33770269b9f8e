"""The settings of a configuration class as named leaves: `train.lr`, `model.d_model`, `lambda`."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

SPELT = {"lam": "lambda"}  # field -> its name in flags and YAML: `lambda` is a reserved word in Python alone


@dataclasses.dataclass(frozen=True)
class Setting:
    """A leaf of the configuration: its dotted name as in YAML (`train.lr`, `lambda`), its type, default and help."""

    name: str
    hint: Any
    default: Any
    help: str
    group: str  # heading in --help; "" for the top level
    positional: bool = False  # given by the words before the first flag
    required: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.hint) is list

    @property
    def shown(self) -> str:
        """As it is called in the terminal: --train.lr, or SOURCE for words before the flags."""
        return self.name.upper() if self.positional else self.flag

    @property
    def may_be_none(self) -> bool:
        return type(None) in typing.get_args(self.hint)

    @property
    def inner(self) -> Any:
        """The type without its None."""
        if typing.get_origin(self.hint) in (types.UnionType, typing.Union):  # `str | None`; `Literal[...] | None` is the other
            return next(h for h in typing.get_args(self.hint) if h is not type(None))
        return self.hint

    @property
    def choices(self) -> tuple[str, ...]:
        """What a Literal takes; none for any other type."""
        return typing.get_args(self.inner) if typing.get_origin(self.inner) is Literal else ()

    def expected(self) -> str:
        """What the setting takes, in words."""
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        else:
            words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
            text = words[self.inner] if not self.is_list else "a list of whole numbers" if self.hint == list[int] else "a list of names"
        return text + (" or null" if self.may_be_none else "")


def walk(config_class: type, prefix: str = "", group: str = "") -> Iterator[Setting]:
    """All leaves of a configuration class and the dataclasses nested in it, in the order of the source."""
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        hint, name = hints[field.name], prefix + SPELT.get(field.name, field.name)
        if dataclasses.is_dataclass(hint):
            yield from walk(typing.cast(type, hint), f"{name}.", name)
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        required = default is dataclasses.MISSING
        if required:  # what stands there until it is given, of the right type
            default = [] if typing.get_origin(hint) is list else ""
        positional = field.metadata.get("positional", False)
        yield Setting(name, hint, default, field.metadata.get("help", ""), group, positional, required)


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values under the names that YAML uses."""
    result = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        result[SPELT.get(field.name, field.name)] = to_dict(value) if dataclasses.is_dataclass(value) else value
    return result
