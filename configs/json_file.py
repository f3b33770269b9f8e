"""JSON files, read whole and checked for their shape: the one reader of results, records and the export.json
of exported folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

Kind = type | UnionType  # dict, or `list | None` for what may be missing


def load_json(
    path: str | Path, shape: type[Any] = dict, keys: Mapping[str, Kind] | None = None, *, cure: str
) -> Any:
    """The content of a JSON file: a `shape` that has `keys` of these types. Raises ValueError that names the
    file, what is wrong with it, and the cure; OSError if it cannot be read."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, nested too deep
        raise ValueError(f"{path} is broken ({error}); {cure}") from error
    if not isinstance(content, shape):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a {shape.__name__}; {cure}")
    for key, kind in (keys or {}).items():
        if not isinstance(found := content.get(key), kind):
            expected = getattr(kind, "__name__", str(kind).removesuffix(" | None"))
            what = "is missing, expected" if found is None else f"is a {type(found).__name__}, not"
            raise ValueError(f"{path}: {key} {what} a {expected}; {cure}")
    return content
