"""JSON files, read whole and checked against a type: the one reader of results, records and the export.json
of exported folders, any of which others may have written.

The type is a TypedDict or a dataclass beside the code that writes the file, so mypy refuses a key that
nothing checks."""

import dataclasses
import json
import sys
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")
hints_of = cache(get_type_hints)


def load_json(path: str | Path, shape: type[T], *, cure: str) -> T:
    """The content of a JSON file in this type. Raises ValueError that names the file, what is wrong with it,
    and the cure; OSError if it cannot be read."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, nested too deep
        raise ValueError(f"{path} is broken ({error}); {cure}") from error
    return in_type(content, shape, path, cure=cure)


def in_type(content: Any, shape: type[T], path: str | Path, *, cure: str) -> T:
    """The content of a file in this type; errors are those of `load_json`."""
    try:
        found: T = parsed(content, shape)
        return found
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {cure}") from error


def parsed(value: Any, shape: Any, place: str = "") -> Any:
    """A value of JSON in a type: an object as a dataclass or as a dict with all its keys, a list as a tuple
    where the type says so. float takes finite numbers. Raises ValueError, with the place of the part that is
    of another type or missing."""
    kind, inner = get_origin(shape) or shape, get_args(shape)
    if shape in (Any, object):
        return value
    if kind is Literal:
        if not any(value == each and type(value) is type(each) for each in inner):
            raise ValueError(f"{place or 'it'} is {value!r}, expected one of {', '.join(map(str, inner))}")
        return value
    if kind in (Union, UnionType):
        wrong = []
        for each in inner:
            try:
                return parsed(value, each, place)
            except ValueError as error:
                wrong.append(error)
        raise wrong[0]
    made, named = dataclasses.is_dataclass(shape), is_typeddict(shape)
    kind = dict if made or named else kind
    plain: Any = {float: int | float, tuple: list}.get(kind, kind)
    if (type(value) is bool and kind is not bool) or not isinstance(value, plain):
        raise ValueError(f"{place or 'it'} is a {type(value).__name__}, not a {kind.__name__}")
    if kind is float and not is_finite(value):
        raise ValueError(f"{place} is {value}, expected a finite number")
    if inner == (float,) and {*map(type, value)} <= {int, float} and all(map(is_finite, value)):
        return value  # the same as below, for the millions of numbers of attention
    if kind in (list, tuple) and inner:
        each = inner[:1] * len(value) if kind is list or inner[-1] is ... else inner
        if len(each) != len(value):
            raise ValueError(f"{place} has {len(value)} items, expected {len(each)}")
        pairs = enumerate(zip(value, each, strict=True))
        return kind(parsed(item, hint, f"{place}[{number}]") for number, (item, hint) in pairs)
    if not (made or named or inner):
        return value
    hints = dict.fromkeys(value, inner[1]) if inner else hints_of(shape)
    for key in needed(shape) if made or named else ():
        if key not in value:
            raise ValueError(f"{place}{'.' * bool(place)}{key} is missing")
    known = {
        key: parsed(value[key], hints[key], f"{place}.{key}".lstrip(".")) for key in hints if key in value
    }
    return shape(**known) if made else value | known


def is_finite(number: float) -> bool:
    """False of an integer that no float holds too."""
    return abs(number) <= sys.float_info.max


@cache
def needed(shape: Any) -> list[str]:
    """The keys that an object of this type must have."""
    if is_typeddict(shape):
        return sorted(shape.__required_keys__)
    fields, none = dataclasses.fields(shape), dataclasses.MISSING
    return [each.name for each in fields if each.default is none and each.default_factory is none]
