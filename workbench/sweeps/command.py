"""The command line of a trial, expanded from `command` and the parameters macro by macro, as W&B's agent
does.

As wandb's own `wandb_agent.py` and `sdk/launch/sweeps/utils.py` (0.31) build it; a test compares the two. A
sweep file comes from anywhere, so its command may start Python with fit.py and nothing else: every other word
must be a flag that fit.py reads.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headgates.configs.cli import read
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.schema import FitConfig

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
INTERPRETERS = ("${interpreter}", "python", "python3")
MACROS = ("args", "args_no_equals", "args_no_boolean_flags")
_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
_MACRO = re.compile(r"\$\{(\w+)\}")


def check_command(command: Any) -> None:
    """Raise ValueError, naming the word, unless the command is [${env}], an interpreter, ${program}, and
    flags or macros of flags."""
    if not isinstance(command, list) or not all(isinstance(word, (str, int, float)) for word in command):
        raise ValueError(
            f"command: expected a list of words such as {', '.join(DEFAULT_COMMAND)}, got {command!r}"
        )
    if command.count("${program}") != 1:
        raise ValueError(
            "command: expected ${program} once: the words before it start Python, those after it are fit.py's"
        )
    split = command.index("${program}")
    before, after = command[:split], [str(word) for word in command[split + 1 :]]
    starts = before[1:] if before[:1] == ["${env}"] else before
    if len(starts) != 1 or starts[0] not in INTERPRETERS:
        wrong = next(
            (word for word in starts if word not in INTERPRETERS), " ".join(map(str, starts)) or "nothing"
        )
        expected = f"${{env}}, if wanted, and one of {', '.join(INTERPRETERS)}"
        raise ValueError(
            f"command: expected {expected} before ${{program}}, got {wrong}; a sweep file starts fit.py and no other program"
        )
    for word in after:
        macro = _MACRO.fullmatch(word)
        if macro and macro[1] not in MACROS:  # an agent would leave an unknown one out without a word
            raise ValueError(
                f"command: {word} gives fit.py no flags; take ${{args}}{did_you_mean(macro[1], MACROS)}"
            )


def agent_command(
    command: Sequence[Any], program: str, values: Mapping[str, Any], *, interpreter: str = "python"
) -> list[str]:
    """Return the words of the command that W&B's agent starts for a trial with these values. The agent calls
    any interpreter `python`."""
    macros = {"interpreter": [interpreter], "program": [program], **flags_by_macro(values)}
    if sys.platform != "win32":
        macros["env"] = ["/usr/bin/env"]
    command_line: list[str] = []
    for word in command:
        # a variable that is not set leaves its own name
        text = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[1]), str(word))
        is_macro = text.startswith("${") and text.endswith("}")
        command_line += macros.get(text[2:-1], []) if is_macro else [text]
    return command_line


def flags_by_macro(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the words that each macro of flags stands for. `args_no_boolean_flags` writes true as the bare
    flag, and leaves false out."""
    named = {name: f"--{name}={value}" for name, value in values.items()}
    return {
        "args": list(named.values()),
        "args_no_equals": [word for name, value in values.items() for word in (f"--{name}", str(value))],
        "args_no_boolean_flags": [
            f"--{name}" if values[name] is True else named[name]
            for name in named
            if values[name] is not False
        ],
    }


def fit_config(command: Sequence[Any], values: Mapping[str, Any]) -> FitConfig:
    """Return the configuration that fit.py would read from a trial's command line. Raises ValueError that
    names the flag."""
    config = read(FitConfig, agent_command(command[list(command).index("${program}") + 1 :], "", values))
    if config.name is not None:
        raise ValueError(
            f"--name {config.name} would give all trials one folder; leave it out, runs name themselves"
        )
    if config.fresh:
        raise ValueError("--fresh would begin a trial again whenever the sweep goes on; leave it out")
    return config
