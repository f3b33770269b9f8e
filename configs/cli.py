"""Command line and YAML from the frozen dataclasses of `schema.py`.

A flag beats the YAML of `--config`, which beats the dataclass' default.   `model.d_model` is
`--model.d-model` on the command line (or with
an underscore) and `model: {d_model: ...}` in YAML (or with a dash); the field `lam` is spelt `lambda` in
both. What a user gets wrong is one line on the terminal: what was expected, what came, and the nearest right
name.

Imports neither torch nor lightning, so that a script that imports those after `parse` answers `--help` at
once.
"""

import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from importlib.metadata import version
from typing import Any, TypeVar

from headgates import __version__
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import SPELT, About, Setting, all_settings, shortened, to_dict
from headgates.configs.printable import printable
from headgates.configs.yaml_file import ConfigError, config_file, dump_yaml, load_yaml, scalar

C = TypeVar("C")
SCRIPT = re.compile(r"python \w+\.py")  # in the examples of a class's docstring

# keys that a run folder's config.yaml has beside the settings; skipped when it is read again
RECORDED = {"base", "base_hash", "run_hash", "recipe"}
# of every command, and no setting
CONFIG = Setting("config", str, about=About("a YAML file, or the name of one that comes with headgates"))


def parse(config_class: type[C], argv: Sequence[str] | None = None, *, prog: str) -> tuple[C, dict[str, Any]]:
    """The configuration of a command line (default `sys.argv[1:]`), and the settings that it gives by dotted
    name, in flags or files. Prints what is asked for and exits with 0 on --help, --help-all and --version;
    on anything wrong prints one line and a hint, and exits with 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not (answer := _answer(config_class, words, prog=prog)):
            return read_given(config_class, words)
        print(answer, flush=True)
        raise SystemExit(0)
    except BrokenPipeError:  # `--help | head`: what was wanted has been read
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python complains once more at its end
        raise SystemExit(0) from None
    except ConfigError as error:
        name = prog.removeprefix("python ")
        print(printable(f"{name}: error: {error}\n(see `{prog} --help`)"), file=sys.stderr)
        raise SystemExit(2) from None


def read_command(config_class: type[C], argv: Sequence[str]) -> C:
    """The configuration of a command line; raises ConfigError (ValueError) where `parse` exits."""
    return read_given(config_class, argv)[0]


def read_given(config_class: type[C], argv: Sequence[str]) -> tuple[C, dict[str, Any]]:
    """`read_command`, and what was given."""
    settings = {setting.name: setting for setting in all_settings(config_class)}
    words = list(argv)
    flagged = {name: each for name, each in settings.items() if each.about.help}  # or `--set`
    flags = _positionals(words, flagged) + _flags(words, flagged | {"config": CONFIG})
    values: dict[str, Any] = {}
    for path in (text for name, text in flags if name == "config"):
        values |= _flat(load_yaml(config_file(path)), settings, origin=f"{path}: ")
    values |= {name: value for name, value in flags if name != "config"}
    return _build(config_class, values, settings), values


def from_dict(config_class: type[C], mapping: Mapping[str, Any]) -> C:
    """The configuration of a mapping such as `to_dict` gives or a YAML file holds; what it lacks has the
    default. Names may be dotted. Raises ConfigError (ValueError)."""
    settings = {setting.name: setting for setting in all_settings(config_class)}
    values = _flat(mapping, settings, origin="")
    return _build(config_class, values, settings)


def to_yaml(config: Any, **recorded: Any) -> str:
    """The whole configuration as YAML that `--config` reads again.   `recorded` (names in RECORDED:
    base_hash) is kept with it."""
    assert set(recorded) <= RECORDED  # or --config would refuse the file
    return dump_yaml(to_dict(config) | recorded)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value of nested settings."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def config_hash(mapping: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the SHA-256 of a mapping of plain values; the order of its keys does not
    matter."""
    canonical = json.dumps(
        mapping, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _answer(config_class: type, words: Sequence[str], *, prog: str) -> str | None:
    """What the flags that need no configuration ask for; None without one."""
    for word in words:
        if word in ("--help", "-h", "--help-all"):
            return help_text(config_class, prog=prog, everything=word == "--help-all")
        if word == "--version":
            installed = (f"{name} {version(name)}" for name in ("torch", "pytorch-lightning"))
            return f"headgates {__version__} (Python {platform.python_version()}, {', '.join(installed)})"
    return None


OF_ALL = (
    "--config FILE reads settings from YAML, a path or a name such as toy; flags beat it.\n"
    "Lists take commas or spaces; a true/false flag alone means true."
)
COLUMNS, PLACE = 80, 20  # of --help, and where its texts begin


def help_text(config_class: type, *, prog: str, everything: bool = True) -> str:
    """What a command does, examples, and its flags: the usual ones by their first sentence, on two screens
    of 24 lines; or `everything`, with types, defaults and the settings without a flag. The examples are the
    lines of the class's docstring that call the script."""
    doc = (config_class.__doc__ or "").strip()
    examples = [f"  {line.strip()}" for line in doc.splitlines() if "python " in line]
    described = [setting for setting in all_settings(config_class) if setting.about.help]
    settings = [setting for setting in described if setting.has_flag]
    positional = [setting for setting in settings if setting.about.positional]
    fields = [field for field in dataclasses.fields(config_class) if dataclasses.is_dataclass(field.type)]
    headings = {each.name: (each.type.__doc__ or "").strip().splitlines()[0].rstrip(".") for each in fields}
    about = textwrap.fill(doc.split("\n")[0], COLUMNS)
    usage = f"usage: {prog} {''.join(map(_usage, positional))}"
    if everything:
        lines = [f"{usage}[--config FILE] [--flag VALUE ...]", "", about, "", *examples, "", OF_ALL, ""]
        lines += [f"  {each.display_name}: {each.about.help}" for each in positional]
        listed = [each for each in settings if not each.about.positional]
        for group, heading in {"": "", **headings}.items():
            lines += ["", f"{group}: {heading}"] * bool(group)
            lines += [_described(each, each.expected()) for each in listed if each.group == group]
        rare = [_described(each) for each in described if each.about.rare]
        lines += ["", "in a --config file or by --set NAME=VALUE alone:", *rare] if rare else []
        return SCRIPT.sub(prog, "\n".join(lines))
    lines = [f"{usage}[--flag VALUE ...]", "", about, *examples, ""]
    usual = [
        each for each in settings if not each.about.positional and not each.about.more and not each.group
    ]
    owners = [vars(each).get("__annotations__", {}) for each in config_class.__mro__]
    usual.sort(key=lambda each: next(i for i, own in enumerate(owners) if each.attribute in own))
    for setting in (*positional, *usual):
        name, text = setting.display_name, setting.about.help.partition(". ")[0].rstrip(".") + "."
        lines += textwrap.wrap(
            text,
            COLUMNS,
            initial_indent=f"{name:<{PLACE - 1}} ",
            subsequent_indent=" " * PLACE,
            break_on_hyphens=False,
        )
    others = [each for each in described if each not in usual and each not in positional]
    groups = f", among them groups such as --{next(iter(headings))}.*" if headings else ""
    more = f"--help-all explains these and {len(others)} more{groups}." if others else ""
    return SCRIPT.sub(prog, "\n".join([*lines, *filter(None, [more])]))


def _described(setting: Setting, *takes: str) -> str:
    """The entry of a setting in the whole help."""
    facts = "; ".join([*takes, f"default: {json.dumps(setting.default)}"])
    text = f"{setting.display_name}: {setting.about.help} ({facts})"
    return textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _usage(setting: Setting) -> str:
    words = (
        f"{setting.display_name} [{setting.display_name} ...]" if setting.is_list else setting.display_name
    )
    return f"{words} " if setting.required else f"[{words}] "


def _positionals(words: list[str], settings: Mapping[str, Setting]) -> list[tuple[str, Any]]:
    """(name, value) of the positional settings, whose words, those before the first flag, are taken out of
    `words`."""
    found = []
    for setting in (setting for setting in settings.values() if setting.about.positional):
        taken: list[str] = []
        while words and not words[0].startswith("-") and (setting.is_list or not taken):
            taken.append(words.pop(0))
        if taken:
            found.append((setting.name, taken if setting.is_list else taken[0]))
    return found


def _flags(words: list[str], settings: Mapping[str, Setting]) -> list[tuple[str, Any]]:
    """(name, value) of every flag, names spelt as in YAML."""
    flags: list[tuple[str, Any]] = []
    first = " and ".join(setting.display_name for setting in settings.values() if setting.about.positional)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            before = f"{first} before the flags, then " if first else ""
            raise ConfigError(f"unexpected {word!r}: {before}settings are given as --flag VALUE")
        option, equals, text = word.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if option == "--set":
            given = text if equals else words.pop(0) if words else "nothing"
            name, equals, text = given.partition("=")
            name = name.replace("-", "_")
            if not equals or name not in settings:
                near = _nearest(name, settings, flags=False)
                raise ConfigError(f"--set: expected NAME=VALUE of a setting, got {given}{near}")
            if words and re.match(r"[\w.]+=", words[0]):  # --set A=1 B=2
                words.insert(0, "--set")
        elif name in settings and settings[name].about.rare:
            raise ConfigError(f"{option} is no flag: give it in a --config file, or by --set {name}=VALUE")
        if not option.startswith("--") or name not in settings:
            flagged = [each.name for each in settings.values() if each.has_flag]
            raise ConfigError(f"unknown flag {option}{_nearest(name, flagged, flags=True)}")
        setting = settings[name]
        follow = [text] if equals else []
        while not equals and words and not words[0].startswith("--") and (setting.is_list or not follow):
            if setting.hint is bool and words[0].lower() not in ("true", "false"):
                if first:  # the word may be a SOURCE in the wrong place
                    break
                raise ConfigError(_wrong_value(setting.flag, setting, words[0]))
            follow.append(words.pop(0))
        if not follow and setting.hint is bool:
            follow = ["true"]
        may_be_empty = setting.item is str and not setting.is_list
        if not follow or not (may_be_empty or any(follow)):  # "" of a shell's variable that is not set
            takes = setting.about.help if setting is CONFIG else setting.expected()
            raise ConfigError(f"{setting.flag} needs a value: {takes}")
        value = ",".join(follow) if setting.is_list or setting.item is str else scalar(follow[0])
        if value == "None" and setting.may_be_none:  # as agents of W&B, and Python, spell null
            value = None
        flags.append((name, _taken(setting, value, setting.display_name, follow[0])))
    return flags


def _names(words: Sequence[str]) -> list[str]:
    """a,b c -> [a, b, c]; [a, b] and ["a", "b"] are taken too."""
    return [
        name for word in words for part in word.strip("[]").split(",") if (name := part.strip().strip("'\""))
    ]


def _flat(
    mapping: Mapping[str, Any], settings: Mapping[str, Setting], *, origin: str, prefix: str = ""
) -> dict[str, Any]:
    """Dotted name -> value, with every name known and values of the settings' types."""
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        name = prefix + str(key).replace("-", "_")
        if name.partition(".")[0] in RECORDED:
            continue
        if name in settings:
            new = {name: _taken(settings[name], value, origin + name, value)}
        elif any(other.startswith(f"{name}.") for other in settings):
            if not isinstance(value, Mapping):
                inner = ", ".join(
                    other.removeprefix(f"{name}.") for other in settings if other.startswith(f"{name}.")
                )
                raise ConfigError(
                    f"{origin}{name}: expected settings below it ({inner}), got {shortened(value)}"
                )
            new = _flat(value, settings, origin=origin, prefix=f"{name}.")
        else:
            raise ConfigError(f"{origin}unknown key {prefix}{key}{_nearest(name, settings, flags=False)}")
        if twice := sorted(set(new) & set(values)):
            raise ConfigError(f"{origin}{twice[0]} is given twice; keep one")
        values |= new
    return values


def _taken(setting: Setting, value: Any, where: str, shown: Any) -> Any:
    """The value in the setting's type. Raises ConfigError, which names `where` and quotes what is `shown`."""
    if setting.is_list and type(value) in (str, int, float):  # kinds: cross, dynamics: 3, lambda: 0.01
        names = _names([str(value)])
        value = names if setting.item is str else [scalar(name) for name in names]
    if setting.item is str and type(value) is int:  # precision: 32
        value = str(value)
    if setting.item is str and setting.is_list and isinstance(value, list):  # heads: [24]
        value = [str(each) if type(each) is int else each for each in value]
    if value == "null" and setting.may_be_none:
        value = None
    if not setting.takes(value):
        raise ConfigError(_wrong_value(where, setting, shown))
    if setting.item is float and value is not None:
        return [float(number) for number in value] if setting.is_list else float(value)
    return value


def _wrong_value(name: str, setting: Setting, value: Any) -> str:
    return (
        f"{name}: expected {setting.expected()}, got "
        f"{shortened(value)}{did_you_mean(str(value), setting.choices)}"
    )


def _nearest(name: str, known: Iterable[str], *, flags: bool) -> str:
    """`; did you mean ...?` with the most similar name, several where only the group differs (train.epochs,
    finetune.epochs); or ""."""
    *groups, leaf = name.split(".")
    spelt = ".".join([*groups, SPELT.get(leaf, leaf)])

    def likeness(other: str) -> float:
        # a name without a group may be a leaf of any group: --d-model, --epoch
        pairs = [(spelt, other)] if groups else [(spelt, other), (spelt, other.rpartition(".")[2])]
        return max(SequenceMatcher(None, *pair).ratio() for pair in pairs)

    ratios = {other: likeness(other) for other in known}
    best = max(ratios.values())
    near = [other for other, ratio in ratios.items() if ratio == best and ratio >= 0.6]
    shown = ["--" + other.replace("_", "-") if flags else other for other in near]
    return f"; did you mean {' or '.join(shown)}?" if shown else ""


def _build(config_class: type[C], given: Mapping[str, Any], settings: Mapping[str, Setting]) -> C:
    """The instance; raises ConfigError where a required setting is missing or __post_init__ refuses."""
    values = {name: setting.default for name, setting in settings.items()} | dict(given)
    if missing := [setting for setting in settings.values() if setting.required and not values[setting.name]]:
        place = "before the first flag, " if missing[0].about.positional else ""
        raise ConfigError(f"{missing[0].display_name} is missing: give, {place}{missing[0].about.help}")
    try:
        return _instance(config_class, values, "")
    except ValueError as error:  # of __post_init__: out of range, or at odds with another setting
        raise ConfigError(str(error)) from None


def _instance(config_class: type[C], values: Mapping[str, Any], prefix: str) -> C:
    hints, arguments = typing.get_type_hints(config_class), {}
    for field in dataclasses.fields(typing.cast(Any, config_class)):
        name, hint = prefix + SPELT.get(field.name, field.name), hints[field.name]
        inner = dataclasses.is_dataclass(hint)
        arguments[field.name] = _instance(hint, values, f"{name}.") if inner else values[name]
    return config_class(**arguments)
