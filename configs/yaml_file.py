"""YAML files of settings, read by the rules of YAML 1.2: the one reader and writer of configurations, run
folders and sweep files."""

import os
import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import yaml

from headgates.configs.did_you_mean import did_you_mean


class ConfigError(ValueError):
    """A flag, key or value that the configuration does not take; the text is one line for the user."""


CONFIGS_FOLDER = Path(__file__).parent  # with the configurations that come with headgates
LARGEST_FILE = 2**20  # bytes; a sweep of thousands of trials stays below


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema; PyYAML's own is 1.1, where `no` is false and 2e-3 is text. A key stands once,
    and nothing is repeated by name (`*name`): settings need no aliases, and nested ones grow to any size."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(
                problem="aliases (*name) are not taken; write the value out", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} is given twice; keep one", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version takes for another type: one hash of a run in 250 is a number in 1.2
    alone, as 12e3456 is."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: list(found) for first, found in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True  # the reader takes none


for _tag, _pattern in {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
    r"|\.inf|\.Inf)|\.nan|\.NaN",
}.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)


def dump_yaml(content: dict[str, Any]) -> str:
    """The text of a file that `load_yaml` reads as `content`, in its order; any other reader of YAML 1.1 or
    1.2 does too."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=140)


def scalar(text: str) -> Any:
    """The number, truth value or null that a word is in YAML 1.2; the word itself if it is none."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, int | float | None) else text


def config_file(name: str) -> Path:
    """The file of settings that a user names: a path, or else a configuration that comes with headgates, by
    its name (`toy`, `lambda`) or by its path in a checkout (`configs/toy.yaml`). Raises ConfigError, which
    lists the names, where there is neither."""
    if os.path.exists(name) and not os.path.isdir(name):
        return Path(name)
    shipped = {path.stem: path for path in sorted(CONFIGS_FOLDER.rglob("*.yaml"))}
    for stem, path in shipped.items():
        if name in (stem, f"configs/{path.relative_to(CONFIGS_FOLDER).as_posix()}"):
            return path
    what = "a folder" if Path(name).is_dir() else "no such file"
    raise ConfigError(
        f"{name}: {what}{did_you_mean(Path(name).stem, shipped)}; give the path of a YAML file, or one "
        f"of the names {', '.join(shipped)}"
    )


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file, by the rules of YAML 1.2: `no` is a language
    and not false, 2e-3 is a number. Raises ConfigError, naming the file and if it can the line, for a file
    that cannot be read, is no
    YAML, or no mapping."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the path of a YAML file") from None
    return parse_yaml(text, path)


@lru_cache(maxsize=256)
def _loaded(text: bytes) -> Any:
    """Kept: a command reads the same few files again and again, and each takes some 30 ms."""
    return yaml.load(text.decode(), Loader=_Loader)


def parse_yaml(text: bytes, path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML text is, as `load_yaml` reads it. path: the file that it is from, for
    errors."""
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{path}: expected a file of settings, got more than {LARGEST_FILE // 2**20} MiB")
    try:
        content = deepcopy(_loaded(text))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: expected UTF-8 text, byte {error.start} is not; save the file as UTF-8"
        ) from None
    except RecursionError:
        raise ConfigError(f"{path}: not settings: lists or mappings are nested too deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(
            f"{where}: not YAML: {getattr(error, 'problem', None) or 'expected `key: value` lines'}"
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected `key: value` lines, got {type(content).__name__}")
    return content
