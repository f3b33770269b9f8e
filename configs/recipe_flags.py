"""The flags that say which smaller models to make: the same in every command that makes some."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from headgates.configs.closing import CLOSED_OUTPUTS, NO_REFIT, REFITS, RESAMPLE, ZERO
from headgates.configs.fields import setting
from headgates.configs.kinds import (
    FFN_KINDS,
    KIND_CHOICES,
    KINDS,
    OF_KINDS,
    kinds_named,
    parse_budget,
)
from headgates.configs.learned import LEARNED
from headgates.configs.recipe import (
    NO_SHORTLIST,
    PLAN,
    STEPS,
    USUAL_BATCH,
    Budget,
    Lambda,
    Layers,
    Listed,
    MaxDrop,
    Pieces,
    Recipe,
    Share,
    Speed,
    Units,
    plain_recipe,
)

LAYER = re.compile(r"(encoder|decoder)\.\d{1,4}")
LEARNED_EPOCHS = 3  # of training where gates learn, unless --epochs says otherwise
TRIED = ("lambda", "heads", "speedup")  # what --max-drop may look among
BUDGET_FLAGS = (
    *("lambda", "heads", "speedup", "params", "macs", "max_drop"),
    *("drop_layers", "trim_vocabulary", "shortlist"),
)


@dataclass(frozen=True, kw_only=True)
class RecipeFlags:
    """Which smaller models: how much stays, what closes, and how it is trained. Several values of a flag make
    several models."""

    lam: list[float] = setting(
        [],
        "Price of each expected open head. In nats per target token; learned gates find the number.",
        at_least=0,
    )
    heads: list[str] = setting(
        [],
        "Heads that stay in all, such as 36,24. Or of each kind, such as enc-self=4,dec-self=8,cross=12.",
    )
    neurons: list[int] = setting(
        [], "Feed-forward neurons that stay in all. Each layer keeps a multiple of 16.", at_least=0
    )
    speedup: list[float] = setting([], "Times as fast as the base, by --runtime.", above=1)
    params: list[float] = setting([], "Share of the parameters that stays.", above=0, below=1)
    macs: list[float] = setting([], "Share of the multiply-adds that stays.", above=0, below=1)
    max_drop: float | None = setting(
        None, "Points that the smallest model may lose on validation.", at_least=0
    )
    drop_layers: list[str] = setting([], "Layers that go, such as encoder.2,decoder.1.")
    trim_vocabulary: list[str] = setting(
        [],
        "Texts whose pieces of the vocabulary stay. Files of source lines, SOURCE:TARGET files, or folders.",
    )
    shortlist: list[str] = setting(
        [],
        "Target pieces that the output layer computes for each source piece. A number, such as 50, or a file "
        "of Marian's. Beside --speedup it is the plan's, which chooses one itself otherwise; 0: none.",
    )
    kinds: list[str] = setting(
        [],
        OF_KINDS,
        items=KIND_CHOICES,
    )
    closed_output: str = setting(
        ZERO,
        f"What a closed head outputs: {', '.join(CLOSED_OUTPUTS)}. That is "
        + "; ".join(f"{name}: {about}" for name, about in CLOSED_OUTPUTS.items())
        + ".",
        choices=CLOSED_OUTPUTS,
        more=True,
    )
    refit: list[str] = setting(
        [],
        f"Weights that are refitted: {', '.join([NO_REFIT, *REFITS])}. That is "
        + "; ".join(f"{name}: {about}" for name, about in REFITS.items())
        + f". Default {NO_REFIT}; out+ffn+v for a speed or a size.",
        items=[NO_REFIT, *REFITS],
    )
    epochs: list[int] = setting(
        [],
        f"Passes over the training text afterwards. Default {LEARNED_EPOCHS} for learned gates, else 0.",
        at_least=0,
    )
    seeds: int = setting(1, "Seeds of samples, gates and training, from --seed on.", at_least=1)
    runtime: Literal["auto", "torch", "bf16", "ct2", "int8"] = setting(
        "auto",
        "What translates: auto, torch, bf16, ct2 or int8. torch is the run's own search, bf16 the same with "
        "rounded weights, ct2 CTranslate2, int8 its form in whole numbers; auto takes the fastest that gives "
        "the same.",
    )
    batch: int = setting(USUAL_BATCH, "Sentences at once where a speed is measured.", at_least=1)

    def recipes(self, choosers: Sequence[str], seed: int, *, default: Sequence[Budget] = ()) -> list[Recipe]:
        """Every combination of the values, whole seeds one after the other; within a seed by training, then
        size. choosers: what chooses; where there are none, what suits the budget. default: the budgets
        where no flag gives one. Raises ValueError at values that make no recipe."""
        budgets, none = self.budgets() or list(default), list[int | None]([None])
        choices = product(
            range(seed, seed + self.seeds), self.epochs or none, budgets, default_choosers(choosers, budgets)
        )
        found = dict[Recipe, None]()
        for each_seed, epochs, budget, choose in choices:
            choose = name_for(choose, budget)
            if epochs is None:
                epochs = LEARNED_EPOCHS * (choose in LEARNED)
            for refit in self.refits(choose, budget):
                recipe = Recipe(
                    choose,
                    budget,
                    self.kinds_for(choose, budget),
                    self.closed_output,
                    refit,
                    epochs,
                    each_seed,
                )
                check_recipe(recipe)
                found[plain_recipe(recipe)] = None
        return list(found)

    def refits(self, choose: str, budget: Budget) -> list[str | None]:
        usual = "out+ffn+v" if decides(choose, budget) else NO_REFIT
        return [None if name == NO_REFIT else name for name in self.refit or [usual]]

    def kinds_for(self, choose: str, budget: Budget) -> tuple[str, ...]:
        usual = ["all"] if decides(choose, budget) else ["heads"]
        return tuple(kinds_named(self.kinds or usual))

    def budgets(self) -> list[Budget]:
        """How much may stay, from the most to the least; none where no flag says so. Raises ValueError at two
        flags that say it in different ways."""
        given = [name for name in BUDGET_FLAGS if self.value(name)]
        given += ["neurons"] * bool(self.neurons and not self.heads)
        if self.speedup or self.max_drop is not None:
            given = [name for name in given if name != "shortlist"]  # which is a part of the plan
        if self.max_drop is not None and self.neurons:
            raise ValueError("--max-drop looks for a number of heads: leave --neurons out")
        over = self.max_drop is not None and given in ([each, "max_drop"] for each in TRIED)
        if len(given) > 1 and not over:
            first, second, *_ = (f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"{first} and {second} say in two ways how much stays: give one of them")
        lists: Sequence[str | None] = [*map(checked_list, self.shortlist)] or [None]
        if self.max_drop is not None:
            return [self.drop_budget(each) for each in lists]
        for name, usual in (("runtime", "auto"), ("batch", USUAL_BATCH)):
            if getattr(self, name) != usual and not self.speedup:
                raise ValueError(f"--{name} is what --speedup times: give --speedup too, or leave it out")
        if not given:
            return []
        if self.heads or self.neurons:
            return [*units_of(self.heads, self.neurons)]
        if self.drop_layers:
            layers = sorted(map(checked_layer, self.drop_layers))
            return [Layers(tuple(f"{stack}.{number}" for stack, number in layers))]
        if self.trim_vocabulary:
            return [Pieces(tuple(self.trim_vocabulary))]
        if self.shortlist and not self.speedup:
            if NO_SHORTLIST in self.shortlist:
                raise ValueError(
                    "--shortlist 0 leaves no piece: give at least 1, such as 50, or leave it out; beside "
                    "--speedup it is a plan without a shortlist"
                )
            return [Listed(by) for by in lists if by]
        budgets: list[Budget] = [Lambda(price) for price in sorted(self.lam)]
        speeds = product(sorted(self.speedup), lists)
        budgets += [Speed(factor, self.runtime, self.batch, each) for factor, each in speeds]
        for of, shares in (("params", self.params), ("macs", self.macs)):
            budgets += [Share(of, share) for share in sorted(shares, reverse=True)]
        return budgets

    def drop_budget(self, shortlist: str | None) -> MaxDrop:
        assert self.max_drop is not None
        units = list(units_of(self.heads, [])) if self.heads else []
        if any(each.by_kind for each in units):
            raise ValueError("--max-drop looks for a number of heads in all: give --heads such as 36,24")
        heads = tuple(each.heads or 0 for each in units)
        speeds, prices = tuple(sorted(self.speedup)), tuple(sorted(self.lam))
        return MaxDrop(self.max_drop, heads, speeds, prices, self.runtime, self.batch, shortlist)

    def value(self, name: str) -> object:
        found = getattr(self, "lam" if name == "lambda" else name)
        return found is not None if name == "max_drop" else found


def units_of(heads: Sequence[str], neurons: Sequence[int]) -> Iterable[Units]:
    """Every number of heads with every number of neurons, the most first. Raises ValueError at words that are
    neither numbers nor KIND=HEADS."""
    by_kind = [word for word in heads if "=" in word]
    counts = [word for word in heads if "=" not in word]
    if wrong := [word for word in counts if not re.fullmatch(r"[0-9]+", word)]:
        raise ValueError(f"--heads: expected whole numbers such as 36,24, or KIND=HEADS, got {wrong[0]!r}")
    if by_kind and counts:
        raise ValueError("--heads: give numbers in all, or a number of each kind, not both")
    each: list[Units] = [Units(heads=int(count)) for count in counts] or [Units()]
    if by_kind:
        given = parse_budget(by_kind)
        each = [Units(heads=sum(given.values()), by_kind=tuple(given.items()))]
    each.sort(key=lambda units: -(units.heads or 0))
    for units in each:
        for count in sorted(neurons, reverse=True):
            yield replace(units, neurons=count)
        if not neurons:
            yield units


def checked_layer(name: str) -> tuple[str, int]:
    """Its stack and number."""
    if not LAYER.fullmatch(name):
        raise ValueError(
            f"--drop-layers {name}: expected layers such as encoder.2 or decoder.1, separated by commas"
        )
    stack, _, number = name.partition(".")
    return stack, int(number)


def checked_list(by: str) -> str:
    """A number without zeros before it, or a file's name."""
    return str(int(by)) if by.isdigit() else by


def decides(choose: str, budget: Budget) -> bool:
    """Whether heads, neurons and layers are traded off against each other, so that all may close."""
    return isinstance(budget, Share | Speed) or (isinstance(budget, MaxDrop) and choose == PLAN)


def default_choosers(choosers: Sequence[str], budgets: Sequence[Budget]) -> Sequence[str]:
    """What chooses, where the command does not say: learned gates for a price, a plan for a speed, a size
    or a drop, else importance, as for a drop among numbers of heads."""
    if choosers:
        return choosers
    if any(map(has_prices, budgets)):
        return ["l0"]
    if any(isinstance(budget, MaxDrop) and budget.heads for budget in budgets):
        return ["importance"]
    return [PLAN] if any(isinstance(each, Share | Speed | MaxDrop) for each in budgets) else ["importance"]


def has_prices(budget: Budget) -> bool:
    return isinstance(budget, Lambda) or (isinstance(budget, MaxDrop) and bool(budget.prices))


def name_for(choose: str, budget: Budget) -> str:
    """What chooses, or that the command itself does."""
    return STEPS.get(type(budget), choose)


def check_recipe(recipe: Recipe) -> None:
    """Raises ValueError at a budget that what chooses cannot have, or that does not fit the kinds."""
    choose, budget = recipe.choose, recipe.budget
    learned = LEARNED.get(choose)
    by_price = has_prices(budget)
    if by_price and (learned is None or not learned.by_price):
        raise ValueError(
            f"--lambda is a price that learned gates pay, and {choose} has none: give --heads, or choose l0"
        )
    if choose == PLAN and isinstance(budget, Lambda | Units):
        raise ValueError("a plan reaches a speed or a size: give --speedup, --params or --macs")
    if isinstance(budget, MaxDrop) and (budget.heads if choose == PLAN else budget.speeds):
        raise ValueError(
            "--max-drop: a plan is looked for among speeds, and what others choose among numbers of heads: "
            f"give --{'speedup' if choose == PLAN else 'heads'}, or neither"
        )
    if isinstance(budget, MaxDrop) and choose != PLAN:
        for name, usual in (("runtime", "auto"), ("batch", USUAL_BATCH)):
            if getattr(budget, name) != usual:
                raise ValueError(
                    f"--{name} is what plans are timed by, and {choose} makes none: leave it out"
                )
    counted = isinstance(budget, MaxDrop) and choose != PLAN and not by_price
    if counted and not {*FFN_KINDS}.isdisjoint(recipe.kinds):
        raise ValueError(
            f"--max-drop: what {choose} closes is looked for among numbers of heads: leave neurons out of "
            "--kinds, or take --by plan, which closes them too"
        )
    if choose in STEPS.values() and type(budget) not in STEPS:
        raise ValueError(f"--by {choose}: expected what goes itself, by its own flag, got {budget.words}")
    if isinstance(budget, MaxDrop) and learned is not None and (recipe.refit or not recipe.epochs):
        raise ValueError(
            f"--max-drop: {choose} closes heads while the weights train: give --epochs, and leave --refit out"
        )
    if recipe.learns_weights and recipe.epochs == 1 and isinstance(budget, Speed | Share):
        raise ValueError(
            f"--by {choose} without a refit: gates and weights learn together, and what is left trains on "
            "after them: give --epochs of at least 2, or --refit out+ffn+v"
        )
    listed = getattr(budget, "shortlist", None) not in (None, NO_SHORTLIST)
    if listed and choose not in (PLAN, "scratch"):
        raise ValueError(
            f"--shortlist: beside a speed it is a part of a plan, and {choose} makes none: take --by plan, "
            "or leave it out"
        )
    if choose == "uniform" and not isinstance(budget, Speed):
        raise ValueError("uniform is the smaller model that is as fast: give --speedup")
    if choose == "scratch" and not recipe.epochs:
        raise ValueError("scratch trains a model from random weights: give --epochs")
    if recipe.closed_output == RESAMPLE and recipe.epochs:
        raise ValueError("resampled outputs cannot be trained around: give --epochs 0 with --closed-output")
    if isinstance(budget, Pieces | Listed) and (recipe.epochs or recipe.closing != ZERO):
        flag = next(iter(budget.flags)).replace("_", "-")
        raise ValueError(
            f"--{flag} is a step of its own, so that what it changes is seen: give the run that it "
            "makes to a second command"
        )
    if isinstance(budget, Units):
        gated = {
            "heads": [kind for kind in recipe.kinds if kind in KINDS],
            "neurons": [kind for kind in recipe.kinds if kind in FFN_KINDS],
        }
        numbers = {"heads": budget.heads, "neurons": budget.neurons}
        for what, word in (("heads", "heads"), ("neurons", "ffn")):
            if numbers[what] is not None and not gated[what]:
                raise ValueError(
                    f"--{what} {numbers[what]}: --kinds {','.join(recipe.kinds)} has no {what}; add --kinds "
                    f"{word}, or take --kinds all"
                )
        for what, kinds in gated.items():
            if kinds and numbers[what] is None:
                raise ValueError(
                    f"--kinds {','.join(recipe.kinds)} names {what}: give --{what} too, or fewer --kinds"
                )
        if budget.by_kind and {kind for kind, _ in budget.by_kind} != {*gated["heads"]}:
            words = ",".join(f"{kind}={count}" for kind, count in budget.by_kind)
            raise ValueError(
                f"--heads {words}: expected a number for each of --kinds {','.join(gated['heads'])}; give "
                "them all, or fewer --kinds"
            )
