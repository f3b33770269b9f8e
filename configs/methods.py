"""The methods that learn which heads stay: what each is called, what controls it, and which rows it has in a
comparison.

To add one: its gate in gates/foo.py with a line in GATES (gates/registry.py), and a record here. Flags, names
of runs, the fingerprint that finds a finished run again, the rows of result.json, labels and colours all
follow from the record. Nothing here imports torch, so that --help answers at once.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

from headgates.configs.fields import setting


@dataclass(frozen=True)
class HardConcreteOptions:
    """Hard Concrete gates (Louizos et al. 2018, Voita et al. 2019)."""

    log_alpha: float = setting(
        2.5,
        "starting value; from 2.4 on the test gate is exactly 1, so a converged model is not disturbed",
        rare=True,
    )
    beta: float = setting(0.33, "temperature of the Concrete distribution", above=0, rare=True)
    gamma: float = setting(-0.1, "left end of the stretched interval, below 0", below=0, rare=True)
    zeta: float = setting(1.1, "right end of the stretched interval, above 1", above=1, rare=True)


@dataclass(frozen=True)
class SubsetOptions:
    """Exactly K heads in every sample (Li et al. 2021)."""

    temperature: float = setting(
        1.0, "subset: temperature of the gradient at the first step", above=0, rare=True
    )
    final_temperature: float = setting(
        0.1, "subset: temperature of the gradient at the end of `anneal_steps`", above=0, rare=True
    )
    anneal_steps: int = setting(100, "subset: steps over which the temperature falls", at_least=0, rare=True)


@dataclass(frozen=True)
class GateMethod:
    """One way to learn which heads stay.

    gate: its class, by name in gates.GATES. options: a dataclass whose fields the class takes beside the
    number of heads; they become `--gates.*`. controlled_by: the setting that says how much is closed, lambda
    (a price per open head) or heads (their number). label: in figures and tables. init: the option that says
    where its gates start. lagrangian: a number of heads is held by a price that follows their expected
    number; otherwise the gates keep it themselves. start_by: the score in whose order its gates start; all
    start alike where there is none."""

    name: str
    gate: str
    options: type
    controlled_by: Literal["lambda", "heads"]
    label: str
    init: str = "log_alpha"
    lagrangian: bool = False
    start_by: str | None = None

    @property
    def soft(self) -> str:
        """The row of the gates as trained."""
        return f"{self.name}-soft"

    @property
    def exact(self) -> str:
        """The row of the gates made exactly 0 or 1, which is the run's own system."""
        return self.name

    @property
    def removed(self) -> str:
        """The row of the model without its closed heads."""
        return f"{self.name}-removed"

    @property
    def scratch(self) -> str:
        """The row of the same open heads on random weights, trained as the base, then as the gates."""
        return f"{self.name}-scratch"

    @property
    def labels(self) -> dict[str, str]:
        """Row -> what figures and tables call it."""
        return {
            self.exact: self.label,
            self.soft: f"{self.label}, not yet exactly 0 or 1",
            self.removed: f"{self.label}, closed heads removed",
            self.scratch: "the same open heads, from random weights",
        }

    @property
    def rows(self) -> list[str]:
        """All rows of the method, in the order of a comparison."""
        return [self.soft, self.exact, self.removed]

    def gate_options(self, gates: Any) -> dict[str, Any]:
        """The options of its class, from the settings `--gates.*` (a GateConfig)."""
        return {option.name: getattr(gates, option.name) for option in fields(self.options)}

    def control(self, config: Any) -> dict[str, float]:
        """lambda, or the numbers of heads and of neurons where it has them, of a run's configuration (a
        FitConfig, or the mapping that config.yaml holds)."""
        names = ("lambda",) if self.controlled_by == "lambda" else ("heads", "neurons")
        if not isinstance(config, dict):
            config = {name: getattr(config, "lam" if name == "lambda" else name) for name in names}
        return {name: float(value) for name in names if (value := config.get(name)) is not None}

    def control_word(self, config: Any) -> str:
        """The same in names of files: "0.01", "24", "24-768n"."""
        return "-".join(
            f"{value:g}{'n' * (name == 'neurons')}" for name, value in self.control(config).items()
        )

    def control_label(self, config: Any) -> str:
        """What tells a run from others of the method: "λ 0.01", "24 heads, 768 neurons"."""
        words = [
            f"λ {value:g}" if name == "lambda" else f"{value:g} {name}"
            for name, value in self.control(config).items()
        ]
        return ", ".join(words)


METHODS: dict[str, GateMethod] = {
    "l0": GateMethod(
        "l0", gate="l0", options=HardConcreteOptions, controlled_by="lambda", label="learned gates by λ"
    ),
    "l0-target": GateMethod(
        "l0-target",
        gate="l0",
        options=HardConcreteOptions,
        controlled_by="heads",
        label="learned gates",
        lagrangian=True,
    ),
    "l0-started": GateMethod(
        "l0-started",
        gate="l0",
        options=HardConcreteOptions,
        controlled_by="heads",
        label="learned gates, started by importance",
        lagrangian=True,
        start_by="importance",
    ),
    "subset": GateMethod(
        "subset",
        gate="subset",
        options=SubsetOptions,
        controlled_by="heads",
        label="learned subset",
        init="score",
    ),
}
TARGETS = {"l0": "l0-target"}  # --gate of the left with --heads is the method on the right


def method_of(config: dict[str, Any]) -> GateMethod | None:
    """The method of a run by its config.yaml; None for a run without gates. Raises ValueError at a method
    that this version lacks."""
    name = config.get("gate", "none")
    if name in ("none", "scores", "plan"):
        return None
    if name not in METHODS:
        raise ValueError(
            f"the run's gates are of the method {name!r}, which this version does not have; it has "
            f"{', '.join(METHODS)}"
        )
    return METHODS[name]
