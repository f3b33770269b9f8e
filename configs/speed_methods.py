"""The ways to a model of a given speed, which are rows of `fit.py --speedup` and methods of `compare.py
--speedups`.

To add one that closes by an order of its own: a record here. Nothing here imports torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

PLAN = "plan"
LEARNED = (
    "learned"  # in an order's place: gates, trained on frozen weights under a limit on what is open costs
)
TRAINED = ":trained"
AS_LONG = 2  # epochs from random weights for each of fine-tuning: a plan takes about as long as the training


@dataclass(frozen=True)
class SpeedMethod:
    """One way. order: a score, or LEARNED, whose lowest heads and neurons close; None: random weights.
    searched: widths and layers by a plan, else the lowest close first. kinds: a word for
    what may close; with all, layers too."""

    label: str
    order: str | None = None
    searched: bool = False
    kinds: str = "all"

    @property
    def prunes(self) -> bool:
        return self.order is not None


SPEED_METHODS = {
    PLAN: SpeedMethod("planned", "obs", searched=True),
    "plan-heads": SpeedMethod("heads alone, planned", "obs", searched=True, kinds="heads"),
    "plan-importance": SpeedMethod("lowest importance", "importance"),
    "plan-learned": SpeedMethod("learned gates at the speed", LEARNED),
    "plan-scratch": SpeedMethod("the planned shape from random weights, as long"),
    "uniform": SpeedMethod("a smaller model from random weights"),
}
DEFAULT = [PLAN, f"{PLAN}{TRAINED}"]  # rows of fit.py


def rows_of(method: str) -> list[str]:
    """The rows of a method: refitted, and trained on; of a model from random weights, which is always
    trained, one."""
    return [method, f"{method}{TRAINED}"] if SPEED_METHODS[method].prunes else [method]


def row_of(method: str, *, trained: bool) -> str:
    """The row of a method with or without training."""
    return rows_of(method)[-1 if trained else 0]


def speed_rows(systems: Iterable[str]) -> dict[str, list[str]]:
    """Method -> those of its rows that are among the systems."""
    asked = {*systems}
    found = {method: [row for row in rows_of(method) if row in asked] for method in SPEED_METHODS}
    return {method: rows for method, rows in found.items() if rows}


def labels() -> dict[str, str]:
    """Row -> what figures and tables call it."""
    found = {}
    for name, method in SPEED_METHODS.items():
        if method.prunes:
            found[name] = f"{method.label}, refitted"
            found[f"{name}{TRAINED}"] = f"{method.label}, refitted, trained as long"
        else:
            found[name] = method.label
    return found
