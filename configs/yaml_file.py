"""YAML files of settings, read by the rules of YAML 1.2."""

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml


class ConfigError(ValueError):
    """A flag, key or value that the configuration does not take; the text is one line for the user."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema; PyYAML's own is 1.1, where `no` is false and 2e-3 is text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _tag, _pattern in {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf|\.Inf)|\.nan|\.NaN",
}.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file, by the rules of YAML 1.2: `no` is a language and not false, 2e-3 is a number.   Raises ConfigError."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; give the path of a YAML file, e.g. one of configs/") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, byte {error.start} is not; save the file as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'expected `key: value` lines'}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected `key: value` lines, got {type(content).__name__}")
    return content
