"""The gates that learn which heads stay: what each is called, how it starts, and its options.

To add one: its gate in gates/foo.py with a line in GATES (gates/registry.py), and a line here. Flags, names
of runs and what a finished run is found by follow from the line. Nothing here imports torch, so that --help
answers at once."""

from dataclasses import dataclass, fields
from typing import Any

from headgates.configs.fields import setting


@dataclass(frozen=True)
class HardConcreteOptions:
    """Hard Concrete gates (Louizos et al. 2018, Voita et al. 2019)."""

    log_alpha: float = setting(
        2.5,
        "Starting value; from 2.4 on the test gate is exactly 1, so a converged model is not disturbed.",
        rare=True,
    )
    beta: float = setting(0.33, "Temperature of the Concrete distribution.", above=0, rare=True)
    gamma: float = setting(-0.1, "Left end of the stretched interval, below 0.", below=0, rare=True)
    zeta: float = setting(1.1, "Right end of the stretched interval, above 1.", above=1, rare=True)


@dataclass(frozen=True)
class SubsetOptions:
    """Exactly K heads in every sample (Li et al. 2021)."""

    temperature: float = setting(
        1.0, "Temperature of subset's gradient at the first step.", above=0, rare=True
    )
    final_temperature: float = setting(
        0.1, "Temperature of subset's gradient at the end of `anneal_steps`.", above=0, rare=True
    )
    anneal_steps: int = setting(100, "Steps over which subset's temperature falls.", at_least=0, rare=True)


@dataclass(frozen=True)
class Learned:
    """One kind of learned gate.

    gate: its class, by name in gates.GATES. options: a dataclass whose fields the class takes; they become
    `--gates.*`. label: in figures and tables. by_price: a price steers it, lambda or one that follows a
    number of heads; otherwise the gates keep their number themselves."""

    gate: str
    options: type
    label: str
    by_price: bool = True

    def gate_options(self, gates: Any) -> dict[str, Any]:
        """The options of its class, from the settings `--gates.*` (a GateConfig)."""
        return {option.name: getattr(gates, option.name) for option in fields(self.options)}


LEARNED: dict[str, Learned] = {
    "l0": Learned("l0", HardConcreteOptions, "learned gates"),
    "subset": Learned("subset", SubsetOptions, "learned subset", by_price=False),
}
