"""Read a sweep file of Weights & Biases whose trials are a grid, as command lines of fit.py.

`wandb agent` runs every sweep file; here the trials are all combinations of `value` and `values`. A key that
W&B would act on and this machine would not is refused by its name, and a file starts no program but fit.py.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgates.configs.cli import read
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.configs.settings import Settings
from headgates.configs.yaml_file import config_file, load_yaml

USED = ("program", "method", "parameters", "command", "run_cap")
WITHOUT_EFFECT = ("metric", "name", "description", "project", "entity", "kind", "apiVersion")
STARTS = ("${env}", "${interpreter}", "python", "python3")  # words before ${program}
FLAGS = ("${args}", "${args_no_equals}", "${args_no_boolean_flags}")  # stand for the parameters
LARGEST = 10_000  # trials


def read_sweep(path: str | Path) -> list[tuple[dict[str, Any], list[str]]]:
    """Each trial in order, the last parameter changing fastest: the settings that differ from trial to trial,
    and the words of its command line. Raises ValueError with one line that names the file and the key."""
    content = load_yaml(config_file(str(path)))
    try:
        return list(trials(content))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def only_wandb(what: str) -> ValueError:
    return ValueError(
        f"{what}: a sweep on this machine is a grid of `value` and `values`; `wandb sweep` and `wandb agent` "
        "run everything else"
    )


def trials(content: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The trials of a file's content. Raises ValueError that names the key."""
    for key in content:
        if key not in (*USED, *WITHOUT_EFFECT):
            raise only_wandb(f"{key}{did_you_mean(str(key), USED)}")
    if content.get("program") != "fit.py":
        raise ValueError(f"program: expected fit.py, got {shortened(content.get('program'))}")
    if content.get("method") != "grid":
        raise only_wandb(f"method {shortened(content.get('method'))}")
    parameters = content.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise ValueError(f"parameters: expected `name: {{values: [...]}}` lines, got {shortened(parameters)}")
    values = {str(name): values_of(name, entry) for name, entry in parameters.items()}
    if (count := math.prod(map(len, values.values()))) > LARGEST:
        raise ValueError(f"parameters: expected at most {LARGEST:,} trials, got {count:,}")
    cap = content.get("run_cap")
    if cap is not None and (type(cap) is not int or cap < 1):
        raise ValueError(f"run_cap: expected a whole number above 0, got {shortened(cap)}")
    words = words_after_program(content.get("command", [*STARTS[:2], "${program}", FLAGS[0]]))
    for point in itertools.islice(itertools.product(*values.values()), cap):
        trial = dict(zip(values, point, strict=True))
        bare = [f"{name}={value}" for name, value in trial.items()]
        flags = {word: [f"--{each}" for each in bare] for word in FLAGS} | {"${args_no_hyphens}": bare}
        command = [part for word in words for part in flags.get(word, [word])]
        yield {name: value for name, value in trial.items() if len(values[name]) > 1}, command


def values_of(name: Any, entry: Any) -> list[Any]:
    """The values of a parameter. Raises ValueError at anything but value and values."""
    if not isinstance(entry, dict) or len(entry) != 1 or not set(entry) <= {"value", "values"}:
        raise only_wandb(f"parameters.{name}: got {shortened(entry)}")
    values = entry["values"] if "values" in entry else [entry["value"]]
    if not isinstance(values, list) or not values or any(v is None or isinstance(v, dict) for v in values):
        raise ValueError(
            f"parameters.{name}: expected text, numbers or lists of them, got {shortened(values)}"
        )
    return values


def words_after_program(command: Any) -> list[str]:
    """What a sweep's command gives to fit.py. Raises ValueError where it would start another program."""
    if not isinstance(command, list) or command.count("${program}") != 1:
        raise ValueError(
            f"command: expected a list of words with ${{program}} once, got {shortened(command)}"
        )
    place = command.index("${program}")
    if other := [word for word in command[:place] if word not in STARTS]:
        raise only_wandb(f"command: {shortened(other[0])} before ${{program}}")
    return [str(word) for word in command[place + 1 :]]


def trial_config(words: list[str], data_dir: str | None) -> Settings:
    """The configuration of a trial. Raises ValueError where fit.py would, and at flags that no trial has."""
    config = read(Settings, words)
    if config.name is not None or config.fresh:
        raise ValueError("--name and --fresh are of one run; leave them out, runs name themselves")
    config = replace(config, data_dir=data_dir or config.data_dir)
    check_fit(config)
    return config
