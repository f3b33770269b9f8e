"""One entry below `parameters` of a sweep file: a flag of fit.py, and the distribution that its values come from.

Distributions and their keys are those of W&B's schema (see file.py). Nested parameters are refused: an agent gives `train: {parameters:
{epochs: ...}}` as the one word --train={'epochs': ...}; `train.epochs: ...` says the same and reaches the program.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from configs.fields import walk
from configs.schema import FitConfig

PROGRAM = "fit.py"
# what is the machine's and not the trial's, and where it is said instead
NOT_OF_A_TRIAL = ("name", "runs", "logger", "threads", "resume", "unique", "fresh")


@dataclass(frozen=True)
class Keys:
    """What a distribution is described by: the keys that it needs, and those that have a default."""

    needs: tuple[str, ...] = ()
    defaults: tuple[tuple[str, float], ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.needs, *(name for name, _ in self.defaults))


_BOUNDS, _NORMAL, _BETA, _Q = ("min", "max"), (("mu", 0.0), ("sigma", 1.0)), (("a", 1), ("b", 1)), (("q", 1.0),)
DISTRIBUTIONS = {
    "constant": Keys(("value",)),
    "categorical": Keys(("values",)),
    "categorical_w_probabilities": Keys(("values", "probabilities")),
    "int_uniform": Keys(_BOUNDS),
    "uniform": Keys(_BOUNDS),
    "q_uniform": Keys(_BOUNDS, _Q),
    "log_uniform": Keys(_BOUNDS),
    "log_uniform_values": Keys(_BOUNDS),
    "q_log_uniform": Keys(_BOUNDS, _Q),
    "q_log_uniform_values": Keys(_BOUNDS, _Q),
    "inv_log_uniform": Keys(_BOUNDS),
    "inv_log_uniform_values": Keys(_BOUNDS),
    "normal": Keys((), _NORMAL),
    "q_normal": Keys((), _NORMAL + _Q),
    "log_normal": Keys((), _NORMAL),
    "q_log_normal": Keys((), _NORMAL + _Q),
    "beta": Keys((), _BETA),
    "q_beta": Keys((), _BETA + _Q),
}
IN_A_GRID = ("constant", "categorical", "int_uniform", "q_uniform")  # all that a grid of W&B takes


@dataclass(frozen=True)
class Parameter:
    """One flag of fit.py and where its values come from. numbers: the distribution's keys, defaults filled in."""

    name: str
    distribution: str
    numbers: dict[str, Any]

    @property
    def varies(self) -> bool:
        return self.distribution != "constant" and len(self.numbers.get("values", (0, 1))) > 1


def parse_parameter(name: Any, spec: Any) -> Parameter:
    """The parameter of an entry below `parameters`. Raises ValueError."""
    where = f"parameters.{name}"
    flags = [setting.name for setting in walk(FitConfig)]
    flag = str(name).replace("-", "_")
    if not isinstance(spec, dict):
        raise ValueError(f"{where}: expected `value: ...`, `values: [...]` or a distribution below it, got {shown(spec)}")
    if "parameters" in spec:
        inner = next(iter(spec["parameters"] or ["..."]))
        raise ValueError(f"{where}: nested parameters reach a program as one word that {PROGRAM} does not read; write {name}.{inner}: ...")
    if flag in NOT_OF_A_TRIAL:
        raise ValueError(f"{where}: not a property of a trial; give it to sweep.py where it has such a flag, or write it into command:")
    if flag not in (*flags, "config"):
        raise ValueError(f"{where}: {PROGRAM} has no flag --{name}{nearest(flag, (*flags, 'config'))}")
    distribution = spec.get("distribution", implied(spec, where))
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"{where}.distribution: W&B knows no {shown(distribution)}{nearest(distribution, DISTRIBUTIONS)}")
    keys = DISTRIBUTIONS[distribution]
    for key in spec:
        if key not in (*keys.all, "distribution"):
            raise ValueError(f"{where}: distribution {distribution} takes {', '.join(keys.all)}, got {key}{nearest(key, keys.all)}")
    if missing := [key for key in keys.needs if spec.get(key) is None]:
        absent = "null cannot be given on a command line" if missing[0] in spec and missing[0] == "value" else f"{missing[0]} is missing"
        raise ValueError(f"{where}: distribution {distribution} needs {' and '.join(keys.needs)}; {absent}")
    numbers = {**dict(keys.defaults), **{key: spec[key] for key in keys.all if key in spec}}
    check_numbers(distribution, numbers, where)
    return Parameter(str(name), distribution, numbers)


def implied(spec: Mapping[str, Any], where: str) -> str:
    """The distribution that W&B takes where none is named."""
    if "value" in spec or "values" in spec:
        return "constant" if "value" in spec else "categorical_w_probabilities" if "probabilities" in spec else "categorical"
    if "min" in spec or "max" in spec:
        return "int_uniform" if is_int(spec.get("min")) and is_int(spec.get("max")) else "uniform"
    if "distribution" in spec:
        return ""
    got = f", got {', '.join(map(str, spec))}" if spec else ""
    raise ValueError(f"{where}: expected value, values, min and max, or a distribution{got}")


def check_numbers(distribution: str, numbers: Mapping[str, Any], where: str) -> None:
    """Raises ValueError where W&B's schema does, and where a draw would have no value."""
    for value in numbers["values"] if isinstance(numbers.get("values"), list) else [numbers.get("value", 0)]:
        if value is None or isinstance(value, dict):
            raise ValueError(f"{where}: expected text, numbers or lists of them, got {shown(value)}")
    if "values" in numbers and not (isinstance(numbers["values"], list) and numbers["values"]):
        raise ValueError(f"{where}.values: expected a list with at least one value, got {shown(numbers['values'])}")
    if "probabilities" in numbers:
        check_probabilities(numbers["values"], numbers["probabilities"], f"{where}.probabilities")
    for key in ("min", "max", "mu", "sigma", "a", "b", "q"):
        if key in numbers:
            check_number(numbers[key], f"{where}.{key}", whole=distribution == "int_uniform", above={"a": 0, "b": 0, "q": 0}.get(key))
    if numbers.get("sigma", 0) < 0:
        raise ValueError(f"{where}.sigma: expected a number at least 0, got {numbers['sigma']}")
    if "min" not in numbers:
        return
    if not numbers["min"] < numbers["max"]:
        raise ValueError(f"{where}: min must be below max, got {numbers['min']} and {numbers['max']}")
    if distribution.endswith("_values") and numbers["min"] <= 0:
        raise ValueError(f"{where}.min: {distribution} needs a number above 0, got {numbers['min']}")
    if distribution.endswith("log_uniform") and max(abs(numbers["min"]), abs(numbers["max"])) > 700:
        raise ValueError(f"{where}: the bounds of {distribution} are natural logarithms; for the values themselves: {distribution}_values")


def check_number(value: Any, where: str, *, whole: bool, above: float | None) -> None:
    expected = "a whole number" if whole else "a number" if above is None else f"a number above {above:g}"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not math.isfinite(value):
        # YAML 1.1, which W&B reads, takes 2e-3 for text
        hint = "; with an exponent write a point too, as in 2.0e-3" if isinstance(value, str) and "e" in value.lower() else ""
        raise ValueError(f"{where}: expected {expected}, got {shown(value)}{hint}")
    if above is not None and value <= above:
        raise ValueError(f"{where}: expected {expected}, got {value}")


def check_probabilities(values: list[Any], shares: Any, where: str) -> None:
    if not isinstance(shares, list) or len(shares) != len(values):
        raise ValueError(f"{where}: expected a list of {len(values)} numbers, one for each value, got {shown(shares)}")
    for share in shares:
        check_number(share, where, whole=False, above=None)
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"{where}: expected numbers from 0 on that add up to 1, got {shown(shares)}")


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: Any, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    near = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
