"""A sweep file of Weights & Biases that is a grid of `value` and `values`, as command lines of fit.py.
`wandb agent` runs every other sweep."""

import itertools
from typing import Any

from headgates.configs.yaml_file import config_file, load_yaml

FIXED = {"program": "fit.py", "method": "grid"}
OTHER_KEYS = ("parameters", "command", "metric", "name", "description", "project", "entity")
ARGS = "${args}"  # stands for the parameters in `command`


def read_sweep(path: str) -> list[tuple[dict[str, Any], list[str]]]:
    """Each trial in order, the last parameter changing fastest: the settings that differ from trial to trial,
    and the words of its command line. Raises ValueError at anything but a grid of fit.py, naming it."""
    content = load_yaml(config_file(path))
    unread = [str(key) for key in content if key not in (*FIXED, *OTHER_KEYS)]
    unread += [key for key, value in FIXED.items() if content.get(key) != value]
    parameters, grid = content.get("parameters"), dict[str, list[Any]]()
    for name, entry in parameters.items() if isinstance(parameters, dict) else ():
        match entry:
            case {"values": [_, *_] as values} if len(entry) == 1:
                grid[str(name)] = values
            case {"value": value} if len(entry) == 1:
                grid[str(name)] = [value]
            case _:
                unread.append(f"parameters.{name}")
    command = content.get("command", ["${program}", ARGS])
    if not (isinstance(command, list) and command.count("${program}") == 1):
        unread.append("command")
    if unread or not grid:
        raise ValueError(
            f"{path}: {', '.join(unread) or 'parameters'}: this machine runs fit.py over a grid of `value` "
            "and `values`; `wandb sweep` and `wandb agent` run everything else"
        )
    words = list(map(str, command[command.index("${program}") + 1 :]))
    trials = []
    for point in itertools.product(*grid.values()):
        trial = dict(zip(grid, point, strict=True))
        flags = [f"--{name}={value}" for name, value in trial.items()]
        line = [part for word in words for part in (flags if word == ARGS else [word])]
        trials.append(({name: value for name, value in trial.items() if len(grid[name]) > 1}, line))
    return trials
