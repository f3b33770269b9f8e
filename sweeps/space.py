"""The trials of a sweep: every point of a grid, or as many random draws as are asked for.

A draw is a quantile of its distribution at a uniform number, as in W&B's own optimiser (github.com/wandb/sweeps, src/sweeps/params.py at
c462496). The uniform number depends on nothing but the seed, the trial's number and the parameter's name: trial 3 stays what it is when
there are more trials, or another parameter.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np

from sweeps.file import Sweep
from sweeps.parameter import Parameter

MANY = 10_000  # points of a grid: more are a slip of the pen


@dataclass(frozen=True)
class Draw:
    """A trial's number, from 1, and its values by parameter. same_as: the number of an earlier trial with the very same values."""

    number: int
    values: dict[str, Any]
    same_as: int | None


def draws(sweep: Sweep, *, seed: int, count: int) -> list[Draw]:
    """The first `count` trials, 0 for the file's run_cap. Raises ValueError for a random sweep that would never end."""
    cap = count or sweep.run_cap
    if cap is None and sweep.method == "random":
        raise ValueError(f"{sweep.path}: method random draws for ever; give --count, or run_cap in the file")
    if sweep.method == "grid" and (size := math.prod(map(grid_size, sweep.parameters))) > MANY:
        raise ValueError(f"{sweep.path}: a grid of {size:,} trials; more than {MANY:,} are not made, take method random")
    points = grid(sweep.parameters) if sweep.method == "grid" else random_points(sweep.parameters, seed)
    first: dict[str, int] = {}
    made = []
    for number, values in enumerate(islice(points, cap), start=1):
        same = first.setdefault(json.dumps(values, sort_keys=True, default=str), number)
        made.append(Draw(number, values, None if same == number else same))
    return made


def grid(parameters: tuple[Parameter, ...]) -> Iterator[dict[str, Any]]:
    """All combinations, the last parameter of the file changing fastest."""
    for values in product(*map(grid_values, parameters)):
        yield {parameter.name: value for parameter, value in zip(parameters, values, strict=True)}


def grid_size(parameter: Parameter) -> int:
    """How many values a grid takes of it."""
    numbers = parameter.numbers
    if parameter.distribution == "int_uniform":
        return int(numbers["max"] - numbers["min"] + 1)
    if parameter.distribution == "q_uniform":
        return math.ceil((numbers["max"] - numbers["min"]) / numbers["q"])
    return len(numbers.get("values", [0]))


def grid_values(parameter: Parameter) -> list[Any]:
    """q_uniform leaves its upper bound out, as W&B does."""
    numbers = parameter.numbers
    match parameter.distribution:
        case "constant":
            return [numbers["value"]]
        case "int_uniform":
            return list(range(numbers["min"], numbers["max"] + 1))
        case "q_uniform":
            return list(np.arange(numbers["min"], numbers["max"], numbers["q"]).tolist())
    return list(numbers["values"])


def random_points(parameters: tuple[Parameter, ...], seed: int) -> Iterator[dict[str, Any]]:
    """Draws without end."""
    number = 1
    while True:
        yield {parameter.name: quantile(parameter, uniform(seed, number, parameter.name)) for parameter in parameters}
        number += 1


def uniform(seed: int, number: int, name: str) -> float:
    """A number inside (0, 1)."""
    steps = 2**52  # k + 0.5 is exact below it, so that neither end is ever drawn
    bits = np.random.default_rng([seed, number, zlib.crc32(name.encode())]).integers(steps)
    return (int(bits) + 0.5) / steps


def quantile(parameter: Parameter, u: float) -> Any:
    """The value below which a share u of the draws is. A quantised draw is rounded to a multiple of q, and may then pass a bound."""
    numbers, name = parameter.numbers, parameter.distribution
    if name == "constant":
        return numbers["value"]
    if name == "categorical":
        return numbers["values"][int(u * len(numbers["values"]))]
    if name == "categorical_w_probabilities":
        below = np.cumsum(numbers["probabilities"])
        return numbers["values"][int(np.searchsorted(below / below[-1], u, side="right"))]
    if name == "int_uniform":
        return numbers["min"] + int(u * (numbers["max"] - numbers["min"] + 1))
    if not name.startswith("q_"):
        return _number(name, numbers, u)
    steps, q = round(_number(name.removeprefix("q_"), numbers, u) / numbers["q"]), numbers["q"]
    return steps * q


def _number(name: str, numbers: Mapping[str, float], u: float) -> float:
    """The quantile of a distribution of real numbers."""
    match name:
        case "uniform":
            return _between(numbers["min"], numbers["max"], u)
        case "log_uniform":  # bounds: natural logarithms of the smallest and the largest value
            return math.exp(_between(numbers["min"], numbers["max"], u))
        case "log_uniform_values" | "inv_log_uniform_values":  # 1 / x log-uniform too: the same distribution
            value = math.exp(_between(math.log(numbers["min"]), math.log(numbers["max"]), u))
            return min(max(value, numbers["min"]), numbers["max"])  # exp of log may miss a bound by the last digit
        case "inv_log_uniform":  # bounds: natural logarithms of 1 / x
            return math.exp(-_between(numbers["min"], numbers["max"], 1 - u))
    # here: a second to import, and few sweeps need it
    from scipy.special import betaincinv, ndtri  # type: ignore[import-untyped]

    if name == "beta":
        return float(betaincinv(numbers["a"], numbers["b"], u))
    normal = numbers["mu"] + numbers["sigma"] * float(ndtri(u))
    if name == "log_normal" and normal > 700:
        raise ValueError(f"log_normal: mu and sigma are those of the natural logarithm; exp({normal:.4g}) is too large a number")
    return normal if name == "normal" else math.exp(normal)


def _between(low: float, high: float, u: float) -> float:
    return low + u * (high - low)
