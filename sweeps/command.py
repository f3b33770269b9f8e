"""The command line of a trial: what W&B's agent makes of `command` and the parameters, macro by macro.

As wandb's own `wandb_agent.py` and `sdk/launch/sweeps/utils.py` (0.31) build it; a test holds the two against each other.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from configs.cli import read
from configs.schema import FitConfig

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
MACROS = (
    "env",
    "interpreter",
    "program",
    "args",
    "args_no_equals",
    "args_no_hyphens",
    "args_no_boolean_flags",
    "args_json",
    "args_append_hydra",
    "args_override_hydra",
)
NOT_HERE = ("args_json_file", "args_dict")  # a file that only an agent writes; not words
_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
_MACRO = re.compile(r"\$\{(\w+)\}")


def check_command(command: Any) -> None:
    """Raises ValueError where the list is none, names an unknown macro, or does not run the program."""
    if not isinstance(command, list) or not command or not all(isinstance(word, (str, int, float)) for word in command):
        raise ValueError(f"command: expected a list of words such as {', '.join(DEFAULT_COMMAND)}, got {command!r}")
    for word in map(str, command):
        macro = _MACRO.fullmatch(word)
        if macro is None:
            continue
        if macro[1] in NOT_HERE:
            raise ValueError(f"command: {word} is not supported locally; take ${{args}}")
        if macro[1] not in MACROS:  # an agent would leave it out without a word
            near = get_close_matches(macro[1], MACROS, n=1)
            raise ValueError(f"command: unknown macro {word}" + (f"; did you mean ${{{near[0]}}}?" if near else ""))
    if command.count("${program}") != 1:
        raise ValueError("command: expected ${program} once: the words after it are the program's")


def agent_command(command: Sequence[Any], program: str, values: Mapping[str, Any], *, interpreter: str = "python") -> list[str]:
    """The words that W&B's agent starts for a trial with these values; it calls any interpreter `python`."""
    words = {"interpreter": [interpreter], "program": [program], **_arguments(values)}
    if sys.platform != "win32":
        words["env"] = ["/usr/bin/env"]
    made: list[str] = []
    for chunk in command:
        # a variable that is not set leaves its own name
        text = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[1]), str(chunk))
        macro = text.startswith("${") and text.endswith("}")
        made += words.get(text[2:-1], []) if macro else [text]
    return made


def fit_words(command: Sequence[Any], values: Mapping[str, Any]) -> list[str]:
    """What of the command line is fit.py's: the words after the program."""
    after = list(command)[list(command).index("${program}") + 1 :]
    return agent_command(after, "", values)


def fit_config(command: Sequence[Any], values: Mapping[str, Any]) -> FitConfig:
    """The configuration that fit.py reads from a trial's command line. Raises ValueError that names the parameter."""
    config = read(FitConfig, fit_words(command, values))
    if config.name is not None:
        raise ValueError(f"--name {config.name} would give all trials one folder; leave it out, runs name themselves")
    if config.fresh:
        raise ValueError("--fresh would begin a trial again whenever the sweep goes on; leave it out")
    return config


def _arguments(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The macros that are made of the values."""
    pairs = [f"{name}={value}" for name, value in values.items()]
    on = [f"--{name}" if value is True else f"--{name}={value}" for name, value in values.items() if value is not False]
    return {
        "args": [f"--{pair}" for pair in pairs],
        "args_no_equals": [word for name, value in values.items() for word in (f"--{name}", str(value))],
        "args_no_hyphens": pairs,
        "args_no_boolean_flags": on,
        "args_json": [json.dumps(dict(values))],
        "args_append_hydra": [f"+{pair}" for pair in pairs],
        "args_override_hydra": [f"++{pair}" for pair in pairs],
    }
