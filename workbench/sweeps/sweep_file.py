"""Read the sweep files of Weights & Biases, check what of them can run on this machine, and report every
error in one clear line.

The keys are those of W&B's schema (github.com/wandb/sweeps, src/sweeps/config/schema.json at 023865a). They
are listed here because wandb ships without the schema: the package that has it is called `sweeps`, like this
room. The file is read as YAML 1.1, as W&B reads it. A key that W&B would act on and this machine would not is
refused by its name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.configs.metrics import known_metrics
from headgates.configs.yaml_file import load_yaml
from headgates.workbench.sweeps.command import DEFAULT_COMMAND, check_command
from headgates.workbench.sweeps.parameters import PROGRAM, Draw, Parameter, draws, is_int, parse_parameter

METHODS = ("grid", "random")
RUN_HERE = ("program", "method", "metric", "parameters", "command", "run_cap")
NO_EFFECT = (
    "name",
    "description",
    "project",
    "entity",
    "kind",
    "apiVersion",
)  # what W&B calls the sweep and where it keeps it
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
class SweepFile:
    """A checked sweep file. content: as it stands in the file; parameters: in the order of the file."""

    path: Path
    method: str
    parameters: tuple[Parameter, ...]
    command: tuple[Any, ...]
    run_cap: int | None
    content: dict[str, Any]

    @property
    def varied_parameters(self) -> list[str]:
        """Names of the parameters that differ from trial to trial."""
        return [parameter.name for parameter in self.parameters if parameter.varies]

    def draws(self, *, seed: int, count: int) -> list[Draw]:
        """Return the first `count` trials; 0 means as many as the file's run_cap says. Raises ValueError that
        names the file."""
        try:
            return draws(self.parameters, self.method, seed=seed, limit=count or self.run_cap)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None


def read_sweep(path: str | Path) -> SweepFile:
    """Return the checked sweep of a file. Raises ValueError with one line that names the file and the key."""
    path = Path(path)
    content = read_yaml(path)
    try:
        return parse_sweep(content, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file, by PyYAML's safe loader as wandb's own. Raises ValueError."""
    if not path.exists():
        files = {
            file.stem: file
            for folder in (Path("configs/sweeps"), path.parent)
            for file in sorted(folder.glob("*.yaml"))
        }
        hint = did_you_mean(path.stem, list(files)) or (
            f"; there are {', '.join(map(str, files.values()))}" if files else ""
        )
        raise ValueError(f"no sweep file at {path}{hint}")
    return load_yaml(path, yaml.SafeLoader)


def parse_sweep(content: Mapping[str, Any], path: Path) -> SweepFile:
    """Return the checked sweep of a file's content. Raises ValueError that names the key."""
    for key in content:
        if key in NOT_HERE:
            raise ValueError(
                f"{key} is not supported locally: {NOT_HERE[key]}; leave it out, or run the file with wandb agent"
            )
        if key not in (*RUN_HERE, *NO_EFFECT):
            raise ValueError(f"unknown key {key}{did_you_mean(str(key), (*RUN_HERE, *NO_EFFECT, *NOT_HERE))}")
    for key in ("program", "method", "parameters"):
        if content.get(key) is None:
            raise ValueError(f"{key} is missing; a sweep file needs program, method and parameters")
    if os.path.normpath(str(content["program"])) != PROGRAM:
        raise ValueError(
            f"program: expected {PROGRAM}, whose flags the parameters are, got {shortened(content['program'])}"
        )
    if content["method"] in ("bayes", "custom"):
        raise ValueError(
            f"method {content['method']}: supported locally are {' and '.join(METHODS)}; wandb agent runs it"
        )
    method = one_of(METHODS, content["method"], "method")
    check_metric(content.get("metric"))
    check_project(content.get("project"))
    cap = content.get("run_cap")
    if cap is not None and not (is_int(cap) and cap > 0):
        raise ValueError(f"run_cap: expected a whole number above 0, got {shortened(cap)}")
    command = content.get("command", list(DEFAULT_COMMAND))
    check_command(command)
    entries = content["parameters"]
    if not isinstance(entries, dict) or not entries:
        raise ValueError(f"parameters: expected `name: {{values: [...]}}` lines, got {shortened(entries)}")
    parameters = tuple(parse_parameter(name, entry) for name, entry in entries.items())
    return SweepFile(path, method, parameters, tuple(command), cap, dict(content))


def one_of(allowed: tuple[str, ...], value: Any, key: str) -> str:
    if value not in allowed:
        raise ValueError(
            f"{key}: expected one of {', '.join(allowed)}, got {shortened(value)}{did_you_mean(str(value), allowed)}"
        )
    return str(value)


def check_metric(metric: Any) -> None:
    """Raise ValueError if no run logs the metric, or if it asks for something that is not done on this
    machine."""
    if metric is None:
        return
    if not isinstance(metric, dict) or "name" not in metric:
        raise ValueError(f"metric: expected `name: bleu` and `goal: maximize`, got {shortened(metric)}")
    for key in metric:
        if key in ("target", "impute", "impute_while_running"):
            raise ValueError(
                f"metric.{key} is not supported locally; leave it out, or run the file with wandb agent"
            )
        one_of(("name", "goal"), key, "metric")
    if metric["name"] not in known_metrics():
        hint = did_you_mean(str(metric["name"]), known_metrics()) or "; configs/metrics.py lists them"
        raise ValueError(f"metric.name: no run logs {shortened(metric['name'])}{hint}")
    one_of(("minimize", "maximize"), metric.get("goal", "minimize"), "metric.goal")


def check_project(project: Any) -> None:
    """Raise ValueError at a name that W&B would refuse, which it does only when the first run starts."""
    name = str(project or "")
    if wrong := [letter for letter in LETTERS_REFUSED if letter in name]:
        raise ValueError(
            f"project: W&B takes no {' '.join(LETTERS_REFUSED)} in a project's name, got {shortened(name)}; replace {' '.join(wrong)}"
        )
    if len(name) > LONGEST_PROJECT:
        raise ValueError(
            f"project: W&B takes at most {LONGEST_PROJECT} letters in a project's name, got {len(name)}"
        )
