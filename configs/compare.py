"""Settings of `compare.py`: which methods, at how many heads, with how much training, on one base.

What a run is made of (rates, batches, search, kinds) is the base's own, or stands in the file of `--fit`;
here are the choices of the comparison alone. Nothing here imports torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgates.configs.closing import LASTING
from headgates.configs.grid import GridOptions, check_file_name
from headgates.configs.methods import METHODS
from headgates.configs.schema import KINDS, LARGEST_SEED, REQUIRED, check_ranges, check_runs, setting
from headgates.configs.scores import SCORES, ZERO
from headgates.configs.source import SourceOptions

USUAL_SCORES = ("greedy", "obs", "random")  # of those that there are


def posthoc_methods() -> dict[str, str]:
    """What a comparison calls each score, the name of its row -> the score."""
    return {score.row: name for name, score in SCORES.items()}


def all_methods() -> list[str]:
    """Every method that may be compared: those that learn which heads stay, then the scores."""
    return [*METHODS, *posthoc_methods()]


def usual_methods() -> list[str]:
    """The methods without --methods: those that are told a number of heads, then the usual scores."""
    told = [name for name, method in METHODS.items() if method.steered_by == "heads"]
    return [*told, *(name for name in USUAL_SCORES if name in posthoc_methods())]


@dataclass(frozen=True)
class CompareConfig(SourceOptions, GridOptions):
    """`compare.py SOURCE`: every method on one base, at the same numbers of heads, with the same training.

    python compare.py runs/toy-en-de-none-s1 --methods greedy,weight-norm,random --heads 36,24,12
    python compare.py runs/toy-en-de-none-s1 --methods l0,greedy --lambdas 0.01,0.05 --heads 36,24 --finetune
    3 --seeds 3
    """

    source: str = setting(REQUIRED, "a base: a run folder, or a model of another library", positional=True)
    methods: list[str] = setting(
        usual_methods(),
        f"methods, comma-separated: {', '.join(METHODS)} learn which heads stay; "
        f"{', '.join(posthoc_methods())} close the lowest scores",
        items=all_methods(),
    )
    close: list[str] = setting([ZERO], "what closing a head means, for scores", items=LASTING)
    finetune: list[int] = setting(
        [0, 3],
        "epochs of training: of fine-tuning after a score has chosen, and of the whole stage of learned "
        "gates, which 0 leaves out",
    )
    heads: list[int] = setting(
        [],
        "numbers of heads kept open in total; default three quarters, half, a quarter and an eighth of all",
    )
    lambdas: list[float] = setting(
        [], "for methods that lambda steers, whose points stand at as many heads as they leave open"
    )
    seeds: int = setting(
        1,
        "seeds of everything that is drawn: training, gates, random scores; the base is the same",
        at_least=1,
    )
    seed: int = setting(1, "the first seed", at_least=0, at_most=LARGEST_SEED)
    kinds: list[str] = setting(
        [],
        "kinds of attention whose heads are closed, comma-separated; default those of the base",
        items=KINDS,
    )
    fit: str | None = setting(
        None,
        "YAML file of fit.py's settings for all runs alike, in place of the base's own: finetune, gates, "
        "search",
    )
    name: str | None = setting(
        None, "name of the comparison, which is written to RUNS/compare-NAME; default that of the base"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        check_runs(self.runs)
        if self.name is not None:
            check_file_name(self.name)
        check_numbers("--finetune", self.finetune, at_least=0)
        check_numbers("--heads", self.heads, at_least=1)
        check_numbers("--lambdas", self.lambdas, at_least=0)
        if self.fit is not None and not Path(self.fit).is_file():
            raise ValueError(
                f"--fit: expected a YAML file of fit.py's settings, and there is none at {self.fit}"
            )
        self._check_methods()

    def _check_methods(self) -> None:
        learned = [name for name in self.methods if name in METHODS]
        steered = [name for name in learned if METHODS[name].steered_by == "lambda"]
        if steered and not self.lambdas:
            raise ValueError(
                f"{steered[0]} is controlled by lambda and takes no number of heads: give --lambdas, such as "
                "0.01,0.05"
            )
        if self.lambdas and not steered:
            raise ValueError(
                f"--lambdas: none of the methods {', '.join(self.methods)} is steered by lambda; leave it out"
            )
        if learned and not any(self.finetune):
            raise ValueError(
                f"--finetune 0 has no training, so {', '.join(learned)} would have no point; add epochs, or "
                "leave out what learns"
            )
        if len(learned) == len(self.methods) and self.close != [ZERO]:
            raise ValueError(
                f"--close {','.join(self.close)} is for scores, and {', '.join(learned)} learn; add a score, "
                "or leave it out"
            )

    @property
    def all_seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))


def check_numbers(flag: str, numbers: Sequence[float], *, at_least: int) -> None:
    """Raises ValueError unless the numbers are finite, at least so large, and each given once."""
    for number in numbers:
        if not (math.isfinite(number) and number >= at_least):
            why = "; with none open all methods are one model" if flag == "--heads" and number == 0 else ""
            raise ValueError(f"{flag}: expected numbers of at least {at_least}, got {number:g}{why}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            f"{flag}: expected each number once, got {', '.join(f'{number:g}' for number in numbers)}"
        )
