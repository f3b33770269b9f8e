"""Train a base model, make a smaller one of it, and compare that with the usual rivals.

python fit.py --gate l0 --lambda 0.01
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headgates.commands import start
from headgates.commands.prune import words_of
from headgates.configs.closing import ZERO
from headgates.configs.fields import setting
from headgates.configs.grid import GridOptions
from headgates.configs.learned import LEARNED
from headgates.configs.recipe import Lambda, MaxDrop, Recipe, Speed, Units
from headgates.configs.recipe_flags import RecipeFlags
from headgates.configs.settings import Settings
from headgates.data import CORPORA, load_corpus
from headgates.data.ranks import after_first, first, world
from headgates.models.progress import say
from headgates.pruning.choosers import OFFERED, check_chooser, check_parts, is_score, way

if TYPE_CHECKING:
    from headgates.data import Corpus
    from headgates.data.text import ParallelText
    from headgates.lab.lab import Lab
    from headgates.pruning.make import Row
    from headgates.records.folder import RunFolder

NONE = "none"
USUAL_PRICE = 0.01
MOST_COUNTED = 20_000  # pairs whose characters are counted
OWN = {"gate", "rivals", "data", "src", "tgt"}  # not of `prune`, whose base has its text


@dataclass(frozen=True, kw_only=True)
class FitOptions(RecipeFlags, GridOptions, Settings):
    """Train a base model, make a smaller one of it, and compare.

    python fit.py --gate l0 --lambda 0.01
    python fit.py --data my-text --src en --tgt fr --heads 24
    python fit.py --config configs/multi30k.yaml --speedup 2 --epochs 8
    """

    gate: str = setting(
        "l0",
        f"The method that chooses what stays: {', '.join(OFFERED)}, or module:function; none makes a base "
        "alone. With l0, gates learn what stays, but for a speed or a size a plan decides, and prune --by l0 "
        "trains gates for these.",
    )
    rivals: list[str] = setting(
        ["importance", "raw-importance"],
        "Scores that close as many heads. Untrained, and by the first refitted and trained as long.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole_matrices(self.train.optimizer)
        others = {"--gate none": self.gate == NONE, "--name": self.name is not None, "--fresh": self.fresh}
        others |= {"--devices": self.devices * self.num_nodes > 1}
        if self.slurm and (other := next((name for name, given in others.items() if given), None)):
            raise ValueError(
                f"--slurm: fit makes jobs of models beside a base that it trains itself, not with {other}: "
                "leave one of them out, or start the command by sbatch"
            )
        if self.gate != NONE:
            check_chooser("--gate", self.gate)
            own = self.own_recipes()
            if (self.jobs > 1 or self.slurm) and not any(isinstance(each.budget, Units) for each in own):
                raise ValueError(
                    f"--{'slurm' if self.slurm else 'jobs'}: fit makes models side by side whose numbers of "
                    "heads are given, by --heads; make the base by --gate none, and the others by prune"
                )
            for choose in self.rivals:
                check_chooser("--rivals", choose)
                if not (is_score(choose) or choose in LEARNED):
                    raise ValueError(
                        f"--rivals: expected scores or gates, which close so many heads, got {choose}; "
                        "compare with it by prune"
                    )
            for recipe in own:
                rivals = self.rivals if isinstance(recipe.budget, Lambda | Units | MaxDrop) else []
                for choose in (recipe.choose, *rivals):
                    check_parts(replace(recipe, choose=choose))
        elif self.budgets():
            raise ValueError(
                "--gate none makes a base, of which nothing closes; leave the numbers out, and give those "
                "that a file has as --heads '[]'"
            )

    def own_recipes(self) -> list[Recipe]:
        """What the command is for: λ 0.01 where no flag says how much stays."""
        plan = self.gate == "l0" and (self.speedup or self.params or self.macs)
        return self.recipes(["plan" if plan else self.gate], self.seed, default=[Lambda(USUAL_PRICE)])


def main() -> int:
    return start(
        "fit",
        FitOptions,
        fit,
        interrupted="the same command with --resume continues from its last checkpoint",
    )


def fit(options: FitOptions, given: Mapping[str, Any]) -> None:
    """Train and evaluate the base and what is made of it, and print how they compare."""
    fitted(options, given)


def fitted(options: FitOptions, given: Mapping[str, Any], *, show: bool = True) -> "list[Row]":
    """The rows of what is made of the base, or the base's own where nothing is; what is finished is found.
    given: what flags and files say, by dotted name. show: print how they compare, and write the pages."""
    from headgates.lab.processes import join
    from headgates.records.named_paths import check_settings

    devices, num_nodes = join(options.devices, options.num_nodes)
    settings = replace(plain_settings(options), devices=devices, num_nodes=num_nodes)
    check_settings(settings)
    corpus = read_text(settings)
    if corpus is not None and settings.data not in CORPORA:
        settings = suited_settings(settings, corpus.train.first(settings.text.train_sentences), given)
    settings.check_dynamics()
    # only now: these take seconds to import, and --help, a wrong flag, path or text need none of them
    from headgates.lab.experiment_text import ExperimentText
    from headgates.lab.lab import Lab
    from headgates.pruning.base import base_run
    from headgates.pruning.make import row_of
    from headgates.records.row import BASE, PRUNED
    from headgates.report.compared import show_compared

    text = None if corpus is None else ExperimentText(settings, corpus)
    recipes = [] if options.gate == NONE else options.own_recipes()
    for said in filter(None, dict.fromkeys(map(way, recipes))):
        say(said)
    lab = Lab(settings, text, asked=recipes[0] if recipes else None)
    lab.others = recipes[1:]
    try:
        base = base_run(lab)
        rows = made_with_rivals(lab, base, recipes, options, given)
        lab.complete(rows[0].run if rows else base, PRUNED if rows else BASE, base)
        if show:
            first(lambda: show_compared(lab, base, rows, [], look=settings.look_sentences))
        return rows or [row_of(base, lab)]
    finally:
        lab.close()


def made_with_rivals(
    lab: "Lab", base: "RunFolder", recipes: list[Recipe], options: FitOptions, given: Mapping[str, Any]
) -> "list[Row]":
    """The rows of the recipes, each followed by those of its rivals. With --jobs those whose numbers are
    known are made at once before."""
    from headgates.pruning.at_once import several
    from headgates.pruning.grid import failed_at_once, waiting_of
    from headgates.pruning.make import make

    counted = [recipe for recipe in recipes if isinstance(recipe.budget, Units)]
    if several(options) and world() == 1 and not options.name and not options.fresh:
        known = [each for recipe in counted for each in (recipe, *rivals_of(recipe, None, options))]
        waiting = waiting_of(lab, base, list(dict.fromkeys(known)))
        settings = {name: value for name, value in given.items() if name not in OWN}
        if len(waiting) > (0 if options.slurm else 1):  # what fails is made again below, and says why
            failed_at_once(lab, base, waiting, options, lambda each: words_of(each, str(base.path), settings))
    rows: dict[Recipe, Row] = {}
    for recipe in recipes:
        rows[recipe] = make(lab, base, recipe)
        for rival in rivals_of(recipe, rows[recipe], options):
            if rival not in rows:
                rows[rival] = make(lab, base, rival)
    return list(rows.values())


def rivals_of(recipe: Recipe, row: "Row | None", options: FitOptions) -> list[Recipe]:
    """Closing by scores to as many heads and neurons: untrained, and by the first refitted and trained as
    long. For a speed or a size the same without training. row: of the recipe; of a number of units none is
    needed."""
    if not isinstance(recipe.budget, Lambda | Units | MaxDrop):
        return [replace(recipe, epochs=0)] if recipe.epochs and isinstance(recipe.budget, Speed) else []
    budget = recipe.budget
    if not isinstance(budget, Units):
        assert row is not None  # made before its rivals
        budget = units_left(recipe, row)
    plain = replace(recipe, budget=budget, closed_output=ZERO, refit=None, epochs=0)
    rivals = [replace(plain, choose=score) for score in options.rivals]
    if rivals and recipe.epochs:
        refit = "out+ffn+v" if options.task == "translation" else "out"  # our model's layers are known
        rivals.append(replace(rivals[0], refit=refit, epochs=recipe.epochs))
    return [rival for rival in rivals if rival != recipe]


def units_left(recipe: Recipe, row: "Row") -> Units:
    """As many heads and neurons of the recipe's kinds as its model has."""
    from headgates.gates import FFN_KINDS, KINDS, Subnet

    units = Subnet.from_json(row.result.subnet).units.select(recipe.kinds)
    heads, neurons = units.select(KINDS), units.select(FFN_KINDS)
    return Units(heads.count() if len(heads) else None, neurons.count() if len(neurons) else None)


def plain_settings(options: FitOptions) -> Settings:
    """The settings alone, which the base's config.yaml holds."""
    return Settings(**{name: getattr(options, name) for name in Settings.__dataclass_fields__})


def suited_settings(settings: Settings, text: "ParallelText", given: Mapping[str, Any]) -> Settings:
    """The settings with what suits text of one's own, which is said."""
    from headgates.configs.sized import suited  # it reads YAML, whose import an interrupt may hit

    pairs, few = len(text), text.sample(MOST_COUNTED)
    characters = len(set().union(*few.sources, *few.targets))
    settings, chosen = suited(settings, pairs, given, characters=characters)
    if chosen:
        words = " ".join(f"{name}={value}" for name, value in chosen.items())
        say(
            f"for {pairs:,} training pairs: {words} (flags and files win); the time that this takes is "
            "said after some steps"
        )
    return settings


def read_text(settings: Settings) -> "Corpus | None":
    """The text that the settings name; None where it is that of a task of another kind."""
    if settings.task != "translation":
        say(f"starting from {settings.data}")
        return None
    say(f"reading {settings.data}, {settings.src} to {settings.tgt}")
    return after_first(  # it may be downloaded
        lambda: load_corpus(settings.data, data_dir=settings.data_dir, src=settings.src, tgt=settings.tgt)
    )


if __name__ == "__main__":
    sys.exit(main())
