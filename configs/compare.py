"""Settings of `compare.py`: which methods, at how many heads, with how much training, on one base.

What a run is made of (rates, batches, search, kinds) is the base's own, or stands in the file of `--fit`;
here are the choices of the comparison alone. Nothing here imports torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import check_plain_name
from headgates.configs.grid import GridOptions
from headgates.configs.heads_per_kind import FFN_KINDS, KIND_WORDS, kinds_named
from headgates.configs.methods import METHODS
from headgates.configs.schema import KINDS, LARGEST_SEED, REQUIRED, check_ranges, check_runs, setting
from headgates.configs.source import SourceOptions
from headgates.configs.speed_methods import SPEED_METHODS
from headgates.configs.systems import ScoreRow, check_systems, grammar

USUAL_SCORES = ("importance", "obs", "random")


def usual_methods() -> list[str]:
    """The methods without --methods: those with a budget, then the usual scores."""
    budget = [name for name, method in METHODS.items() if method.controlled_by == "heads"]
    return [*budget, *USUAL_SCORES]


@dataclass(frozen=True)
class CompareConfig(SourceOptions, GridOptions):
    """`compare.py SOURCE`: every method on one base, at the same numbers of heads, with the same training.

    python compare.py runs/toy-en-de-none-s1 --methods importance,weight-norm,random --heads 36,24,12
    python compare.py runs/toy-en-de-none-s1 --methods l0,importance:out+ffn --lambdas 0.01,0.05 --heads 36
    python compare.py runs/toy-en-de-none-s1 --speedups 1.5,2,3 --finetune 3
    """

    source: str = setting(REQUIRED, "a base: a run folder, or a model of another library", positional=True)
    methods: list[str] = setting(
        usual_methods(),
        f"methods, comma-separated, of {grammar(METHODS)}; {', '.join(METHODS)} learn which heads stay, a "
        "score closes the lowest",
    )
    finetune: list[int] = setting(
        [0, 3],
        "epochs of training: of fine-tuning after a score has chosen, and of the whole stage of learned "
        "gates, which 0 leaves out",
        at_least=0,
    )
    heads: list[int] = setting(
        [],
        "numbers of heads kept open in total; default three quarters, half, a quarter and an eighth of all",
        at_least=0,
    )
    neurons: list[int] = setting(
        [],
        "with --kinds ffn or all: numbers of feed-forward neurons kept open in total, each with every number "
        "of --heads; default of ffn the same shares",
        at_least=0,
    )
    speedups: list[float] = setting(
        [],
        "in place of numbers of heads: how many times as fast as the base models are to be; methods, all by "
        f"default: {', '.join(f'{name} ({method.label})' for name, method in SPEED_METHODS.items())}",
        above=1,
    )
    runtime: Literal["auto", "torch", "ct2", "int8"] = setting(
        "auto", "with --speedups: what is timed, as in prune.py"
    )
    lambdas: list[float] = setting(
        [],
        "for methods that lambda controls, whose points stand at as many heads as they leave open",
        at_least=0,
    )
    seeds: int = setting(
        1,
        "seeds of everything that is sampled: training, gates, random scores; the base is the same",
        at_least=1,
    )
    seed: int = setting(1, "the first seed", at_least=0, at_most=LARGEST_SEED)
    kinds: list[str] = setting(
        [],
        f"what is closed, comma-separated: kinds of attention ({', '.join(KINDS)}), of feed-forward layers "
        f"({', '.join(FFN_KINDS)}), or heads, ffn, all; default those of the base",
        items=KIND_WORDS,
    )
    fit: str | None = setting(
        None,
        "YAML file of fit.py's settings for all runs alike, in place of the base's own: finetune, "
        "distill, gates, search, text.max_tokens",
    )
    also: list[str] = setting(
        [],
        "further test sets for the same models, a table each: corpora by name or folder (also inside "
        "--data-dir), or two files, SOURCE:REFERENCE",
    )
    name: str | None = setting(
        None, "name of the comparison, which is written to RUNS/compare-NAME; default that of the base"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "kinds", kinds_named(self.kinds))  # the class is frozen for everybody else
        check_runs(self.runs)
        check_plain_name("--name", self.name)
        if self.fit is not None and not Path(self.fit).is_file():
            raise ValueError(
                f"--fit: expected a YAML file of fit.py's settings, and there is none at {self.fit}"
            )
        if self.speedups:
            return self._check_speeds()
        if self.runtime != "auto":
            raise ValueError("--runtime is what --speedups times: give --speedups too, or leave it out")
        check_systems("--methods", self.methods, list(METHODS))
        self._check_methods()

    def _check_speeds(self) -> None:
        if self.methods == usual_methods():
            object.__setattr__(self, "methods", list(SPEED_METHODS))  # frozen for everybody else
        if wrong := [name for name in self.methods if name not in SPEED_METHODS]:
            raise ValueError(
                f"--speedups: expected methods of {', '.join(SPEED_METHODS)}, got {wrong[0]}"
                f"{did_you_mean(wrong[0], SPEED_METHODS)}"
            )
        own = {
            "--heads": self.heads,
            "--neurons": self.neurons,
            "--lambdas": self.lambdas,
            "--kinds": self.kinds,
        }
        for flag, given in own.items():
            if given:
                raise ValueError(
                    f"--speedups asks for speeds, and a method says what closes; leave {flag} out"
                )
        if not any(self.finetune) and not any(SPEED_METHODS[name].prunes for name in self.methods):
            raise ValueError(
                f"--finetune 0 has no training, so {', '.join(self.methods)} would have no point; add epochs"
            )

    def _check_methods(self) -> None:
        learned = [name for name in self.methods if name in METHODS]
        by_price = [name for name in learned if METHODS[name].controlled_by == "lambda"]
        if by_price and not self.lambdas:
            raise ValueError(
                f"{by_price[0]} is controlled by lambda and takes no number of heads: give --lambdas, "
                "such as 0.01,0.05"
            )
        if self.lambdas and not by_price:
            raise ValueError(
                f"--lambdas: none of the methods {', '.join(self.methods)} is controlled by lambda; "
                "leave it out"
            )
        if learned and not any(self.finetune):
            raise ValueError(
                f"--finetune 0 has no training, so {', '.join(learned)} would have no point; add epochs, or "
                "leave out what learns"
            )

    @property
    def rows(self) -> list[ScoreRow]:
        """The methods that are scores."""
        return [row for row in map(ScoreRow.parse, self.methods) if row is not None]

    @property
    def all_seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))
