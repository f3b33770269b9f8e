"""The parameters of a sweep file and the trials they define: every point of a grid, or as many random draws
as requested.

Some distributions of W&B's sweep format are supported; the others are refused with the name of a replacement.
A random draw is a quantile of its distribution, as in W&B's own optimiser (github.com/wandb/sweeps,
src/sweeps/params.py at c462496), at a uniform number that depends on the seed, the trial's number and the
parameter's name alone: trial 3 is the same when more trials follow it.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, islice, product
from statistics import NormalDist
from typing import Any

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import all_settings, shortened
from headgates.configs.schema import FitConfig

PROGRAM = "fit.py"
# flags that describe the machine, not the trial
NOT_OF_A_TRIAL = (
    "name",
    "runs",
    "logger",
    "threads",
    "resume",
    "unique",
    "fresh",
    "checkpoint_minutes",
    "checkpoint_steps",
)
LARGEST_GRID = 10_000  # trials

Keys = Mapping[str, Any]  # the keys that describe a distribution: value, values, min, max, ...


@dataclass(frozen=True)
class Distribution:
    """quantile(keys, u): the value below which a share u of the draws lies. grid_values(keys): the values of
    a grid, None without one. required, defaults: the keys of the distribution in a sweep file."""

    required: tuple[str, ...]
    quantile: Callable[[Keys, float], Any]
    grid_values: Callable[[Keys], Sequence[Any]] | None = None
    defaults: Keys = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.required, *self.defaults)


def between(keys: Keys, u: float) -> float:
    return float(keys["min"] + u * (keys["max"] - keys["min"]))


def log_between(keys: Keys, u: float) -> float:
    value = math.exp(between({"min": math.log(keys["min"]), "max": math.log(keys["max"])}, u))
    return min(
        max(value, keys["min"]), keys["max"]
    )  # the exponential of a logarithm may miss a bound by the last digit


def weighted(keys: Keys, u: float) -> Any:
    totals = list(accumulate(keys["probabilities"]))
    return next(value for value, total in zip(keys["values"], totals, strict=True) if u * totals[-1] < total)


def steps(keys: Keys) -> list[Any]:
    """min, min + q, ... below max: the upper bound is left out, as W&B does."""
    number = math.ceil((keys["max"] - keys["min"]) / keys["q"])
    return [keys["min"] + i * keys["q"] for i in range(min(number, LARGEST_GRID + 1))]


BOUNDS = ("min", "max")
DISTRIBUTIONS = {
    "constant": Distribution(("value",), lambda keys, u: keys["value"], lambda keys: [keys["value"]]),
    "categorical": Distribution(
        ("values",), lambda keys, u: keys["values"][int(u * len(keys["values"]))], lambda keys: keys["values"]
    ),
    "categorical_w_probabilities": Distribution(("values", "probabilities"), weighted),
    "int_uniform": Distribution(
        BOUNDS,
        lambda keys, u: keys["min"] + int(u * (keys["max"] - keys["min"] + 1)),
        lambda keys: range(keys["min"], keys["max"] + 1),
    ),
    "uniform": Distribution(BOUNDS, between),
    "q_uniform": Distribution(
        BOUNDS, lambda keys, u: round(between(keys, u) / keys["q"]) * keys["q"], steps, {"q": 1.0}
    ),
    "log_uniform_values": Distribution(BOUNDS, log_between),
    "normal": Distribution(
        (), lambda keys, u: NormalDist(keys["mu"], keys["sigma"]).inv_cdf(u), None, {"mu": 0.0, "sigma": 1.0}
    ),
}
INSTEAD = {  # W&B's other distributions, and what to write
    **dict.fromkeys(
        ("log_uniform", "inv_log_uniform"),
        "log_uniform_values, whose bounds are the values and not their logarithms",
    ),
    **dict.fromkeys(
        ("q_log_uniform", "q_log_uniform_values", "inv_log_uniform_values"), "log_uniform_values"
    ),
    **dict.fromkeys(("q_normal", "log_normal", "q_log_normal"), "normal, or list the values"),
    **dict.fromkeys(("beta", "q_beta"), "uniform, or list the values with their probabilities"),
}


@dataclass(frozen=True)
class Parameter:
    """One flag of fit.py and the distribution of its values. keys: the distribution's, defaults filled in."""

    name: str
    distribution: str
    keys: dict[str, Any]

    @property
    def varies(self) -> bool:
        return self.distribution != "constant" and len(self.keys.get("values", (0, 1))) > 1

    def quantile(self, u: float) -> Any:
        return DISTRIBUTIONS[self.distribution].quantile(self.keys, u)


# ---------------------------------------------------------------- reading


def parse_parameter(name: Any, entry: Any) -> Parameter:
    """Return the parameter of an entry below `parameters`. Raises ValueError with one line that names the key
    and what was expected."""
    where, flag = f"parameters.{name}", str(name).replace("-", "_")
    flags = [*(setting.name for setting in all_settings(FitConfig)), "config"]
    if not isinstance(entry, dict):
        raise ValueError(
            f"{where}: expected `value: ...`, `values: [...]` or a distribution below it, got {shortened(entry)}"
        )
    if "parameters" in entry:  # an agent would give them as the one word --train={'epochs': ...}
        inner = next(iter(entry["parameters"] or ["..."]))
        raise ValueError(
            f"{where}: nested parameters reach {PROGRAM} as one word that it does not read; write {name}.{inner}: ..."
        )
    if flag in NOT_OF_A_TRIAL:
        raise ValueError(
            f"{where}: not a property of a trial; give it to sweep.py where it has such a flag, or write it into command:"
        )
    if flag not in flags:
        raise ValueError(f"{where}: {PROGRAM} has no flag --{name}{did_you_mean(flag, flags)}")
    distribution = entry.get("distribution") or implied_distribution(entry, where)
    if distribution in INSTEAD:
        raise ValueError(
            f"{where}: distribution {distribution} is not supported locally; take {INSTEAD[distribution]}"
        )
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"{where}.distribution: no {shortened(distribution)} in W&B{did_you_mean(str(distribution), list(DISTRIBUTIONS))}"
        )
    rule = DISTRIBUTIONS[distribution]
    for key in entry:
        if key not in (*rule.keys, "distribution"):
            raise ValueError(
                f"{where}: distribution {distribution} takes {', '.join(rule.keys)}, got {key}{did_you_mean(str(key), rule.keys)}"
            )
    for key in rule.required:
        if entry.get(key) is None:
            why = (
                "null cannot be given on a command line"
                if key == "value" and key in entry
                else f"{key} is missing"
            )
            raise ValueError(
                f"{where}: distribution {distribution} needs {' and '.join(rule.required)}; {why}"
            )
    keys = {**rule.defaults, **{key: entry[key] for key in rule.keys if key in entry}}
    check_values(keys, where)
    check_numbers(distribution, keys, where)
    return Parameter(str(name), distribution, keys)


def implied_distribution(entry: Keys, where: str) -> str:
    """Return the name of the distribution that W&B assumes if the entry names none. Raises ValueError if none
    can be told."""
    if "value" in entry:
        return "constant"
    if "values" in entry:
        return "categorical_w_probabilities" if "probabilities" in entry else "categorical"
    if "min" in entry or "max" in entry:
        return "int_uniform" if is_int(entry.get("min")) and is_int(entry.get("max")) else "uniform"
    got = f", got {', '.join(map(str, entry))}" if entry else ""
    raise ValueError(f"{where}: expected value, values, min and max, or a distribution{got}")


def check_values(keys: Keys, where: str) -> None:
    values = keys.get("values", [keys.get("value", 0)])
    if not isinstance(values, list) or not values:
        raise ValueError(f"{where}.values: expected a list with at least one value, got {shortened(values)}")
    for value in values:
        if value is None or isinstance(value, dict):
            raise ValueError(f"{where}: expected text, numbers or lists of them, got {shortened(value)}")
    shares = keys.get("probabilities", [1 / len(values)] * len(values))
    fits = (
        isinstance(shares, list)
        and len(shares) == len(values)
        and all(is_number(share) and share >= 0 for share in shares)
    )
    if not fits or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"{where}.probabilities: expected {len(values)} numbers from 0 on that add up to 1, got {shortened(shares)}"
        )


def check_numbers(distribution: str, keys: Keys, where: str) -> None:
    for key in ("min", "max", "mu", "sigma", "q"):
        if key not in keys:
            continue
        value, whole = keys[key], distribution == "int_uniform"
        positive = key in ("sigma", "q") or (key == "min" and distribution == "log_uniform_values")
        if not (is_int(value) if whole else is_number(value)) or (positive and value <= 0):
            # YAML 1.1, which W&B reads, takes 2e-3 for text
            hint = (
                "; with an exponent write a point too, as in 2.0e-3"
                if isinstance(value, str) and "e" in value.lower()
                else ""
            )
            expected = f"a {'whole ' * whole}number{' above 0' * positive}"
            raise ValueError(f"{where}.{key}: expected {expected}, got {shortened(value)}{hint}")
    if "min" in keys and not keys["min"] < keys["max"]:
        raise ValueError(f"{where}: min must be below max, got {keys['min']} and {keys['max']}")


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_int(value) or (isinstance(value, float) and math.isfinite(value))


# ---------------------------------------------------------------- trials


@dataclass(frozen=True)
class Draw:
    """A trial's number, from 1, and its values by parameter. same_as: the number of an earlier trial with the
    very same values."""

    number: int
    values: dict[str, Any]
    same_as: int | None


def draws(parameters: Sequence[Parameter], method: str, *, seed: int, limit: int | None) -> list[Draw]:
    """Return the first `limit` trials of method grid or random, or all for None. Raises ValueError if they
    are too many or never end."""
    if method == "random" and limit is None:
        raise ValueError("method random draws for ever; give --count, or run_cap in the file")
    random_points = (
        {one.name: one.quantile(uniform(seed, number, one.name)) for one in parameters} for number in count(1)
    )
    points = grid(parameters) if method == "grid" else random_points
    first_number: dict[str, int] = {}  # values -> the first trial with them
    trials = []
    for number, values in enumerate(islice(points, limit), start=1):
        first = first_number.setdefault(json.dumps(values, sort_keys=True, default=str), number)
        trials.append(Draw(number, values, None if first == number else first))
    return trials


def grid(parameters: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Return all combinations; the last parameter of the file changes fastest. Raises ValueError if they are
    too many."""
    axes = []
    for parameter in parameters:
        grid_values = DISTRIBUTIONS[parameter.distribution].grid_values
        if grid_values is None:
            takes = ", ".join(name for name, rule in DISTRIBUTIONS.items() if rule.grid_values)
            what = f"method grid takes {takes}, got {parameter.distribution}"
            raise ValueError(f"parameters.{parameter.name}: {what}; list the values, or take method random")
        axes.append(grid_values(parameter.keys))
    if math.prod(map(len, axes)) > LARGEST_GRID:
        raise ValueError(f"a grid of more than {LARGEST_GRID:,} trials is not made; take method random")
    return (
        dict(zip((parameter.name for parameter in parameters), values, strict=True))
        for values in product(*axes)
    )


def uniform(seed: int, number: int, name: str) -> float:
    """Return the random number of a trial's parameter, uniform in (0, 1); it depends on nothing but the three
    arguments."""
    import numpy as np  # here: a tenth of a second that reading a file does not need

    bits = np.random.default_rng([seed, number, zlib.crc32(name.encode())]).integers(2**52)
    return (int(bits) + 0.5) / 2**52  # exact below 2**52, so that neither end is ever drawn
