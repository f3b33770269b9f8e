"""Points of a comparison: a method at a number of heads with so much training; planned, and measured."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from headgates.analysis.significance import Scored
from headgates.configs.cli import from_dict
from headgates.configs.closing import ZERO
from headgates.configs.fields import to_dict
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.configs.speed_methods import SPEED_METHODS, row_of
from headgates.configs.systems import BASES, ScoreRow
from headgates.lab.base_settings import flat
from headgates.records.fingerprint import PLANNED, SCORED
from headgates.records.row import ResultRow


class Size(NamedTuple):
    """What methods are asked for alike: numbers of heads and of feed-forward neurons, or how many times as
    fast as the base."""

    heads: int | None = None
    neurons: int | None = None
    speedup: float | None = None

    @property
    def words(self) -> str:
        """24 heads, 768 neurons, both with "and", or 1.5 times the speed."""
        if self.speedup is not None:
            return f"{self.speedup:g} times the speed"
        parts = {"heads": self.heads, "neurons": self.neurons}
        return " and ".join(f"{number:,} {what}" for what, number in parts.items() if number is not None)


@dataclass(frozen=True)
class Point:
    """A method at a number of heads, or for a speed. method: one that learns, a score, one of
    SPEED_METHODS, or a base. epochs: of training, 0 for
    none; asked: its number of heads, None where lambda (`lam`) decides or no head may close; neurons: its
    number of feed-forward neurons, None where lambda decides or none may close. run_hash: of its run of
    fit.py; needs: the hash of the continued base which runs of its seed and epochs share (none without
    training)."""

    method: str
    epochs: int
    seed: int
    asked: int | None = None
    neurons: int | None = None
    lam: float | None = None
    closing: str = ZERO
    speedup: float | None = None
    runtime: str = "auto"  # that a speed is of
    run_hash: str = ""
    needs: tuple[str, ...] = ()

    @property
    def learned(self) -> bool:
        return self.method in METHODS

    @property
    def size(self) -> Size:
        return Size(self.asked, self.neurons, self.speedup)

    @property
    def label(self) -> str:
        """What figures and tables call it: the method, with the closing unless that is zero."""
        return ScoreRow(self.method, self.closing).name

    @property
    def system(self) -> str:
        """The row of its run that it is."""
        if self.learned:
            return METHODS[self.method].exact
        if self.method in SPEED_METHODS:
            return row_of(self.method, trained=self.epochs > 0)
        return ScoreRow(self.method, self.closing, trained=self.epochs > 0).name

    @property
    def flags(self) -> dict[str, Any]:
        """What fit.py gets beside the shared configuration, by the names of settings."""
        flags: dict[str, Any] = {
            "gate": self.method if self.learned else SCORED if self.speedup is None else PLANNED,
            "systems": [*BASES[: 1 + bool(self.epochs)], self.system],
            "seed": self.seed,
        }
        numbers = {
            "heads": self.asked,
            "neurons": self.neurons,
            "lambda": self.lam,
            "speedup": self.speedup,
            "runtime": None if self.speedup is None else self.runtime,
        }
        flags |= {name: number for name, number in numbers.items() if number is not None}
        return flags | ({"finetune": {"epochs": self.epochs}} if self.epochs else {})

    @property
    def words(self) -> list[str]:
        """The same as words of a command line."""
        return [
            f"--{name}={','.join(value) if isinstance(value, list) else value}"
            for name, value in flat(self.flags).items()
        ]

    def config(self, shared: FitConfig) -> FitConfig:
        """The configuration of its run. Raises ValueError where fit.py would."""
        return from_dict(FitConfig, merged(to_dict(shared), self.flags))


@dataclass(frozen=True, kw_only=True)
class MadePoint(Point):
    """A point that is measured: what comparisons are made of. run: the name of its folder; scored: its
    outputs of the test set; loss: on validation, in nats per token, None where it is not known."""

    run: str
    row: ResultRow
    scored: Scored
    loss: float | None = None


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with the changes, group by group."""
    new = dict(settings)
    for name, value in changes.items():
        key = str(name).replace("-", "_")
        new[key] = merged(new.get(key) or {}, value) if isinstance(value, dict) else value
    return new
