"""A sweep file: what Weights & Biases takes, what of it runs on this machine, and one clear line for what is wrong.

The keys are those of W&B's schema (github.com/wandb/sweeps, src/sweeps/config/schema.json at 023865a), written down here because the wandb
package ships none. The file is read as W&B reads it, by YAML 1.1. Locally run: method grid and random, every distribution, `command` and
`run_cap`; `metric` is checked. Anything that W&B would act on and this machine would not is refused by name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from configs.metrics import known_metrics
from sweeps.command import DEFAULT_COMMAND, check_command
from sweeps.parameter import IN_A_GRID, PROGRAM, Parameter, is_int, nearest, parse_parameter, shown

METHODS = ("grid", "random")
RUN_HERE = ("program", "method", "metric", "parameters", "command", "run_cap")
NO_EFFECT = ("name", "description", "project", "entity", "kind", "apiVersion")  # what W&B calls the sweep and where it keeps it
NOT_HERE = {
    "early_terminate": "here every trial runs to its end",
    "controller": "it says where W&B draws the trials",
    "scheduler": "it says what draws the trials",
    "metrics": "several goals at once need method custom",
    "job": "it is for W&B Launch",
    "image_uri": "it is for W&B Launch",
}
LETTERS_REFUSED, LONGEST_PROJECT = "/\\#?%:", 128  # in a project's name, by wandb's own settings


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file. content: as it stands in the file."""

    path: Path
    method: str
    parameters: tuple[Parameter, ...]  # in the order of the file
    command: tuple[Any, ...]
    run_cap: int | None
    content: dict[str, Any]

    @property
    def program(self) -> str:
        return str(self.content["program"])

    @property
    def varied(self) -> list[str]:
        """Names of the parameters that differ from trial to trial."""
        return [parameter.name for parameter in self.parameters if parameter.varies]


def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a file. Raises ValueError, one line that names the file and the key."""
    content = load(Path(path))
    try:
        return parse_sweep(content, Path(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def load(path: Path) -> dict[str, Any]:
    """The mapping in the file, by PyYAML's safe loader as wandb's own. Raises ValueError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = [str(file) for folder in (path.parent, Path("configs/sweeps")) for file in sorted(folder.glob("*.yaml"))]
        near = [file for file in there if Path(file).stem in get_close_matches(path.stem, [Path(name).stem for name in there], n=1)]
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(there)}" if there else ""
        raise ValueError(f"no sweep file at {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}; give a sweep file, e.g. configs/sweeps/lambda.yaml") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ValueError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'expected `key: value` lines'}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected the `key: value` lines of a sweep, got {'nothing' if content is None else shown(content)}")
    return content


def parse_sweep(content: Mapping[str, Any], path: Path) -> Sweep:
    """The sweep of a mapping. Raises ValueError that names the key."""
    for key in content:
        if key in NOT_HERE:
            raise ValueError(f"{key} is not supported locally: {NOT_HERE[key]}; leave it out, or run the file with wandb agent")
        if key not in (*RUN_HERE, *NO_EFFECT):
            raise ValueError(f"unknown key {key}{nearest(key, (*RUN_HERE, *NO_EFFECT, *NOT_HERE))}")
    for key in ("program", "method", "parameters"):
        if content.get(key) is None:
            raise ValueError(f"{key} is missing; a sweep file needs program, method and parameters")
    if os.path.normpath(str(content["program"])) != PROGRAM:
        raise ValueError(f"program: expected {PROGRAM}, whose flags the parameters are, got {shown(content['program'])}")
    method = check_method(content["method"])
    check_metric(content.get("metric"))
    check_project(content.get("project"))
    cap = content.get("run_cap")
    if cap is not None and not (is_int(cap) and cap > 0):
        raise ValueError(f"run_cap: expected a whole number above 0, got {shown(cap)}")
    command = content.get("command", list(DEFAULT_COMMAND))
    check_command(command)
    specs = content["parameters"]
    if not isinstance(specs, dict) or not specs:
        raise ValueError(f"parameters: expected `name: {{values: [...]}}` lines, got {shown(specs)}")
    parameters = tuple(parse_parameter(name, spec) for name, spec in specs.items())
    if method == "grid":
        for parameter in parameters:
            if parameter.distribution not in IN_A_GRID:
                raise ValueError(
                    f"parameters.{parameter.name}: method grid takes values, value, int_uniform or q_uniform, got {parameter.distribution};"
                    " list the values, or take method random"
                )
    return Sweep(path, method, parameters, tuple(command), cap, dict(content))


def check_method(method: Any) -> str:
    if method in ("bayes", "custom"):
        raise ValueError(f"method {method}: supported locally are {' and '.join(METHODS)}; wandb agent runs it")
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {shown(method)}{nearest(method, (*METHODS, 'bayes'))}")
    return str(method)


def check_metric(metric: Any) -> None:
    if metric is None:
        return
    if not isinstance(metric, dict) or "name" not in metric:
        raise ValueError(f"metric: expected `name: bleu` and `goal: maximize`, got {shown(metric)}")
    for key in metric:
        if key in ("target", "impute", "impute_while_running"):
            raise ValueError(f"metric.{key} is not supported locally; leave it out, or run the file with wandb agent")
        if key not in ("name", "goal"):
            raise ValueError(f"metric: unknown key {key}{nearest(key, ('name', 'goal'))}")
    if metric["name"] not in known_metrics():
        near = nearest(metric["name"], known_metrics()) or "; configs/metrics.py lists them"
        raise ValueError(f"metric.name: no run logs {shown(metric['name'])}{near}")
    if metric.get("goal", "minimize") not in ("minimize", "maximize"):
        goal = metric["goal"]
        raise ValueError(f"metric.goal: expected minimize or maximize, got {shown(goal)}{nearest(goal, ('minimize', 'maximize'))}")


def check_project(project: Any) -> None:
    """W&B refuses such a name only when the first run starts."""
    text = "" if project is None else str(project)
    if wrong := [letter for letter in LETTERS_REFUSED if letter in text]:
        raise ValueError(
            f"project: W&B takes no {' '.join(LETTERS_REFUSED)} in a project's name, got {shown(text)}; replace {' '.join(wrong)}"
        )
    if len(text) > LONGEST_PROJECT:
        raise ValueError(f"project: W&B takes at most {LONGEST_PROJECT} letters in a project's name, got {len(text)}")
