"""Points of a comparison: a method at a number of heads with so much training; planned, and measured."""

from dataclasses import dataclass
from typing import Any

from headgates.analysis.significance import Scored
from headgates.configs.cli import from_dict
from headgates.configs.closing import ZERO
from headgates.configs.fields import to_dict
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.configs.systems import BASES, ScoreRow
from headgates.workbench.base_settings import flat
from headgates.workbench.fingerprint import SCORED
from headgates.workbench.row import ResultRow

Size = tuple[int | None, int | None]  # numbers of heads and of feed-forward neurons


def size_words(size: Size) -> str:
    """24 heads, 768 neurons, or both with "and"."""
    parts = zip(size, ("heads", "neurons"), strict=True)
    return " and ".join(f"{number:,} {what}" for number, what in parts if number is not None)


@dataclass(frozen=True)
class Point:
    """A method at a number of heads. method: one that learns, a score, or a base. epochs: of training, 0 for
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
    run_hash: str = ""
    needs: tuple[str, ...] = ()

    @property
    def learned(self) -> bool:
        return self.method in METHODS

    @property
    def size(self) -> Size:
        """Its numbers of heads and of neurons."""
        return self.asked, self.neurons

    @property
    def label(self) -> str:
        """What figures and tables call it: the method, with the closing unless that is zero."""
        return ScoreRow(self.method, self.closing).name

    @property
    def system(self) -> str:
        """The row of its run that it is."""
        if self.learned:
            return METHODS[self.method].exact
        return ScoreRow(self.method, self.closing, trained=self.epochs > 0).name

    @property
    def flags(self) -> dict[str, Any]:
        """What fit.py gets beside the shared configuration, by the names of settings."""
        flags: dict[str, Any] = {
            "gate": self.method if self.learned else SCORED,
            "systems": [*BASES[: 1 + bool(self.epochs)], self.system],
            "seed": self.seed,
        }
        numbers = {"heads": self.asked, "neurons": self.neurons, "lambda": self.lam}
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
