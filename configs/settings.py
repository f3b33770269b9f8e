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

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.hint) is list

    @property
    def may_be_none(self) -> bool:
        return type(None) in typing.get_args(self.hint)

    def expected(self) -> str:
        """What the setting takes, in words."""
        hint = next(h for h in typing.get_args(self.hint) if h is not type(None)) if isinstance(self.hint, types.UnionType) else self.hint
        if typing.get_origin(hint) is Literal:
            text = "one of " + ", ".join(typing.get_args(hint))
        else:
            words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
            text = "a list of names" if self.is_list else words[hint]
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
        yield Setting(name, hint, default, field.metadata.get("help", ""), group)


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values under the names that YAML uses."""
    result = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        result[SPELT.get(field.name, field.name)] = to_dict(value) if dataclasses.is_dataclass(value) else value
    return result
