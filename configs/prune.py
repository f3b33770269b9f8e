"""Settings of `prune.py`: which heads to close, in which order, and on what to measure.

The run's own settings (text, languages, search) are in its config.yaml; these are the choices of the
experiment alone.
"""

import re
from dataclasses import dataclass
from typing import Literal

from headgates.configs.closing import ABLATIONS, CLOSINGS, RECONSTRUCTIONS, TARGETS, ZERO
from headgates.configs.fields import check_plain_name
from headgates.configs.heads_per_kind import FFN_KINDS, KIND_WORDS, kinds_named
from headgates.configs.schema import KINDS, LARGEST_SEED, REQUIRED, check_ranges, setting
from headgates.configs.scores import SCORES
from headgates.configs.source import SourceOptions

ORDERS = list(SCORES)
USES_GRADIENT = {name for name, score in SCORES.items() if score.from_gradients}
READS_PAIRS = {name for name, score in SCORES.items() if score.reads_pairs}
BUDGETS = ("speedup", "params", "macs")
SPEEDS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)  # of a search for the fastest
LAYER = re.compile(r"(encoder|decoder)\.\d{1,4}")
OWN_SAMPLE = [f"{score.sample:,} for {name}" for name, score in SCORES.items() if score.sample]


@dataclass(frozen=True)
class PruneConfig(SourceOptions):
    """`prune.py`: close heads of a trained model without training, and measure what is lost (Michel et al.
    2019).

    python prune.py runs/toy-en-de-none-s1 --by importance,random
    python prune.py runs/toy-en-de-none-s1 --ablate one
    python prune.py runs/toy-en-de-none-s1 --reconstruct out+ffn --heads 24 --save toy-24
    python prune.py runs/toy-en-de-none-s1 --kinds ffn --by obs --reconstruct out --neurons 512 --save half
    python prune.py runs/toy-en-de-none-s1 --drop-layers encoder.1 --reconstruct out+ffn --save shallow
    python prune.py runs/toy-en-de-none-s1 --speedup 1.25,1.5,2 --runtime int8
    python prune.py runs/toy-en-de-none-s1 --trim-vocabulary in.txt --save trimmed
    """

    source: str = setting(
        REQUIRED,
        "a run folder; a run with gates stands for its base, where the results are written",
        positional=True,
    )
    by: list[str] = setting(
        [],
        f"orders to close heads in, lowest score first: {', '.join(ORDERS)}; default importance, or none "
        f"with --ablate",
        items=ORDERS,
    )
    kinds: list[str] = setting(
        [],
        f"what is closed, comma-separated: kinds of attention ({', '.join(KINDS)}), of feed-forward layers "
        f"({', '.join(FFN_KINDS)}), or heads, ffn, all; default heads, and with a plan all, whole layers too",
        items=KIND_WORDS,
    )
    each_kind: bool = setting(
        False, "one curve for each of the kinds, the others left whole (Michel et al., section 5)"
    )
    step: float = setting(0.1, "share of the heads that each step of a curve closes", above=0, at_most=1)
    at_least: int = setting(0, "heads that stay open in every layer", at_least=0, rare=True)
    recompute: bool = setting(
        False, "importance and reverse: score the open heads anew after every step", rare=True
    )
    abs: Literal["sentence", "token", "batch"] = setting(
        "sentence",
        "importance and reverse: absolute value per sentence (the paper), per query position (its code), "
        "per batch (depends on the batches)",
        rare=True,
    )
    normalise: Literal["l2", "none"] | None = setting(
        None,
        "l2: divide each layer's scores by their norm; default l2 for importance and reverse, none for "
        "the other orders",
        rare=True,
    )
    sentences: int = setting(
        0,
        f"training pairs that scores read, a sample where there are more; 0: {', '.join(OWN_SAMPLE)}",
        at_least=0,
    )
    random_seeds: int = setting(5, "curves of the random order", at_least=1, rare=True)
    ablation: str = setting(
        ZERO,
        "what a closed head outputs; "
        + "; ".join(f"{name}: {each.help}" for name, each in ABLATIONS.items()),
        choices=ABLATIONS,
    )
    reconstruct: str | None = setting(
        None,
        "which weights are refitted; "
        + "; ".join(f"{name}: {e.help}" for name, e in RECONSTRUCTIONS.items()),
        choices=RECONSTRUCTIONS,
    )
    calibration_sentences: int = setting(
        1000,
        "training pairs that closing is calibrated on, a sample; 0 for all",
        at_least=0,
        rare=True,
    )
    calibration_targets: str = setting(
        "reference",
        "their target side; own: the model's greedy translations, so that the source side is enough",
        choices=TARGETS,
        rare=True,
    )
    heads: list[int] = setting(
        [],
        "instead of curves: close down to exactly so many open heads in all; several, comma-separated",
        at_least=0,
    )
    neurons: list[int] = setting(
        [],
        "with --kinds ffn or all: close down to so many open feed-forward neurons in all, each layer to a "
        "multiple of 16; several, comma-separated",
        at_least=0,
    )
    drop_layers: list[str] = setting(
        [],
        "whole layers that leave the model, such as encoder.2,decoder.1, counted from 0; alone, or with "
        "--heads and --neurons, which count what is open in all layers",
    )
    speedup: list[float] = setting(
        [],
        "plan which heads, neurons and layers to close so that the model is so many times as fast, by the "
        "runtime, batch, beam and threads given; several, comma-separated",
        above=1,
    )
    params: list[float] = setting(
        [], "plan for so large a share of the parameters of all layers and tables", above=0, below=1
    )
    macs: list[float] = setting([], "plan for so large a share of the multiply-adds", above=0, below=1)
    max_drop: float | None = setting(
        None,
        "the fastest model that loses at most so many points on validation, over --speedup or eight speeds",
        at_least=0,
    )
    runtime: Literal["auto", "torch", "ct2", "int8"] = setting(
        "auto",
        "with --speedup: what translates and is timed, the run's own search (torch) or CTranslate2 (ct2, or "
        "int8 of it); auto: int8 where it runs the model, else torch",
    )
    batch: int = setting(32, "with --speedup: sentences at once", at_least=1, rare=True)
    trim_vocabulary: list[str] = setting(
        [],
        "instead of closing: keep the pieces that this text needs, and the model's translations of it; files "
        "of source lines, SOURCE:TARGET files, or folders, whose training text it is; needs --save",
    )
    save: str | None = setting(
        None,
        "with one --heads or --neurons, --drop-layers, one budget or --trim-vocabulary: the name of a new "
        "run of the model without what is closed, beside SOURCE's",
    )
    ablate: Literal["one", "all-but-one"] | None = setting(
        None, "one: remove each head alone; all-but-one: leave each layer its best head, chosen on validation"
    )
    also: list[str] = setting(
        [],
        "with --ablate one: further test sets, corpora by name or folder (also inside --data-dir), or two "
        "files, SOURCE:REFERENCE",
    )
    beam: int = setting(1, "beam width; 1 is greedy", at_least=1)
    valid_sentences: int = setting(
        0, "validation pairs to translate; 0: as --test-sentences", at_least=0, rare=True
    )
    test_sentences: int = setting(0, "test pairs, and validation pairs, to translate, 0 for all", at_least=0)
    seed: int = setting(
        1, "seed of samples and draws; the first one of random orders", at_least=0, at_most=LARGEST_SEED
    )
    threads: int = setting(0, "CPU threads for torch, 0 for all", at_least=0)
    fresh: bool = setting(
        False, "repeat what is there already: scores, curves and tables of the same name are replaced"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        self.check_plan()
        kinds = self.kinds or ["all" if self.plans else "heads"]
        object.__setattr__(self, "kinds", kinds_named(kinds))  # the class is frozen for everybody else
        asked = ", ".join(self.orders) or "empty"
        for flag, given in {"recompute": self.recompute, "abs": self.abs != "sentence"}.items():
            if given and not USES_GRADIENT & set(self.orders):
                raise ValueError(f"{flag} is for importance, but --by is {asked}; add --by importance")
        if self.sentences and not READS_PAIRS & set(self.orders):
            readers = ", ".join(name for name in SCORES if name in READS_PAIRS)
            raise ValueError(
                f"--sentences is for scores that read training pairs ({readers}), but --by is {asked}; add "
                f"one of them"
            )
        if self.reconstruct and self.ablation != ZERO:
            raise ValueError(
                f"--reconstruct {self.reconstruct} refits the bias too, to what closed heads gave; "
                f"leave --ablation {self.ablation} out"
            )
        if self.ablate and self.closing != ZERO:
            raise ValueError(f"--ablate closes heads with zero; {self.closing} is for curves and --heads")
        text = {
            "sentences": self.calibration_sentences != 1000,
            "targets": self.calibration_targets != "reference",
        }
        for name, given in text.items():
            if given and not CLOSINGS[self.closing].calibrated:
                calibrated = ", ".join(name for name, closing in CLOSINGS.items() if closing.calibrated)
                raise ValueError(
                    f"calibration_{name} is for {calibrated}; {self.closing} needs no text: add --reconstruct"
                )
        self.check_layers()
        if self.trim_vocabulary:
            self.check_trimming()
        else:
            self.check_heads()
        if self.also and self.ablate != "one":
            raise ValueError("--also repeats --ablate one on another test set; give --ablate one too")

    def check_plan(self) -> None:
        """Raises ValueError at two budgets, or what a plan decides itself."""
        given = [name for name in BUDGETS if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"--{given[0]} and --{given[1]} are two budgets: give one of them")
        if self.max_drop is not None and given not in ([], ["speedup"]):
            raise ValueError(f"--max-drop looks for the fastest model: leave --{given[0]} out")
        if not self.plans:
            if self.runtime != "auto":
                raise ValueError("--runtime is what --speedup times: give --speedup too, or leave it out")
            return
        budget = f"--{given[0]}" if given else "--max-drop"
        own = {
            "--by": self.by,
            "--heads": self.heads,
            "--neurons": self.neurons,
            "--drop-layers": self.drop_layers,
            "--ablate": self.ablate,
            "--each-kind": self.each_kind,
            "--also": self.also,
            "--step": self.step != 0.1,
            "at_least": self.at_least,
        }
        for flag, value in own.items():
            if value:
                raise ValueError(f"{budget} plans by itself what to close; leave {flag} out")
        if self.ablation != ZERO:
            raise ValueError(f"{budget} refits weights; leave --ablation {self.ablation} out")
        if self.reconstruct is None:
            object.__setattr__(self, "reconstruct", "out+ffn+v")

    @property
    def plans(self) -> bool:
        """Whether a budget of speed or size is given."""
        return bool(self.speedup or self.params or self.macs) or self.max_drop is not None

    @property
    def speedups(self) -> list[float]:
        """The speeds of a plan, eight where --max-drop stands alone."""
        return sorted(self.speedup) or (list(SPEEDS) if self.max_drop is not None else [])

    def check_layers(self) -> None:
        """Raises ValueError at --drop-layers that names no layers, or orders without anything to close beside
        them."""
        for name in self.drop_layers:
            if not LAYER.fullmatch(name):
                raise ValueError(
                    f"--drop-layers {name}: expected layers such as encoder.2 or decoder.1, separated by "
                    "commas"
                )
        if self.drop_layers and self.by and not (self.heads or self.neurons):
            raise ValueError(
                f"--by {self.by[0]} with --drop-layers: give --heads or --neurons too, how many stay open"
            )

    def check_heads(self) -> None:
        """Raises ValueError at --heads, --neurons or --save that cannot be done, as far as the settings alone
        tell."""
        neurons = [kind for kind in self.kinds if kind in FFN_KINDS]
        if self.neurons and not neurons:
            raise ValueError("--neurons closes feed-forward neurons: add --kinds ffn, or all for heads too")
        if self.heads and self.kinds == neurons:
            raise ValueError("--heads closes heads, and --kinds names none: give --neurons, or --kinds all")
        if neurons and not (self.heads or self.neurons or self.plans):
            raise ValueError(
                "curves and ablations are of heads: with --kinds ffn or all give --neurons, how many stay"
            )
        if wrong := [order for order in self.by if neurons and not SCORES[order].of_neurons]:
            able = ", ".join(name for name, score in SCORES.items() if score.of_neurons)
            raise ValueError(f"--by {wrong[0]} scores no feed-forward neurons; these do: {able}")
        if self.save is not None:
            several = max(len(self.heads), len(self.neurons), len(self.orders), len(self.budgets)) > 1
            if several or not self.makes_points:
                raise ValueError(
                    "--save keeps one model: give one number of --heads and one order with --by, or one "
                    "budget"
                )
            if not CLOSINGS[self.closing].permanent:
                raise ValueError(
                    f"--ablation {self.closing} samples anew at every pass, so there is no model to --save; "
                    f"take --reconstruct out"
                )
            check_plain_name("--save", self.save)
        beside = {
            "--ablate": self.ablate is not None,
            "--each-kind": self.each_kind,
            "recompute": self.recompute,
            "--step": self.step != 0.1,
        }
        for flag, given in beside.items():
            if given and self.makes_points:
                with_ = "--heads" if self.heads or self.neurons else "--drop-layers"
                raise ValueError(f"{flag} is for curves and ablations; leave it out with {with_}")

    def check_trimming(self) -> None:
        """Raises ValueError where --trim-vocabulary stands beside what closes something, or without a name
        for the run that it makes."""
        closing = self.by or self.makes_points or self.ablate or self.closing != ZERO
        if closing or self.each_kind or self.step != 0.1 or self.kinds != kinds_named(KINDS):
            raise ValueError(
                "--trim-vocabulary is a step of its own, so that what it changes is seen: leave out what "
                "closes heads or neurons, and give the run that it saves to a second prune.py"
            )
        if self.save is None:
            raise ValueError("--trim-vocabulary makes a new run: add --save NAME")
        check_plain_name("--save", self.save)

    @property
    def closing(self) -> str:
        """What closing a head means: an entry of CLOSINGS."""
        return self.reconstruct or self.ablation

    @property
    def orders(self) -> list[str]:
        """The orders that are asked for: importance unless --by says otherwise, or there are only ablations
        to make, layers to drop, a plan or a vocabulary to trim."""
        layers_alone = self.drop_layers and not (self.heads or self.neurons)
        none = self.ablate or layers_alone or self.plans or self.trim_vocabulary
        return self.by or ([] if none else ["importance"])

    @property
    def makes_points(self) -> bool:
        """Whether models are made and measured, not curves or ablations."""
        return bool(self.heads or self.neurons or self.drop_layers) or self.plans

    @property
    def budgets(self) -> list[float]:
        """Of a plan, one for each model that is made; one with --max-drop, which is not known yet."""
        return [0.0] if self.max_drop is not None else [*self.speedup, *self.params, *self.macs]

    @property
    def layers(self) -> dict[str, list[int]]:
        """The layers to drop of each stack."""
        chosen: dict[str, list[int]] = {}
        for name in self.drop_layers:
            stack, _, number = name.partition(".")
            chosen.setdefault(stack, []).append(int(number))
        return chosen
