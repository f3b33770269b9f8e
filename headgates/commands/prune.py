"""Make smaller models of a trained one, and measure them: several values make a comparison with intervals.

python prune.py runs/toy-en-de-none-s1 --by importance,obs --heads 36,18 --epochs 3 --seeds 3
python prune.py runs/toy-en-de-none-s1 --by l0 --lambda 0.01 --epochs 3
python prune.py runs/toy-en-de-none-s1 --speedup 2 --runtime int8 --epochs 8
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgates.commands import start
from headgates.configs.fields import REQUIRED, all_settings, setting
from headgates.configs.grid import GridOptions
from headgates.configs.recipe import Budget, Recipe, Units
from headgates.configs.recipe_flags import RecipeFlags, decides
from headgates.configs.settings import OF_THE_BASE, Settings
from headgates.configs.source import SourceOptions
from headgates.data.ranks import first
from headgates.models.progress import say
from headgates.pruning.choosers import OFFERED, check_chooser, check_parts, way
from headgates.records.foreign_source import is_foreign

if TYPE_CHECKING:
    from headgates.lab.lab import Lab
    from headgates.records.folder import RunFolder

DEFAULT_SHARES = (0.75, 0.5, 0.25, 0.125)  # of all heads, where no flag says how many stay


@dataclass(frozen=True, kw_only=True)
class PruneOptions(RecipeFlags, GridOptions, Settings):
    """Make smaller models of a trained one, and measure them.

    python prune.py runs/toy-en-de-none-s1 --by importance,obs --heads 36,18
    python prune.py runs/toy-en-de-none-s1 --by l0 --lambda 0.01 --epochs 3
    python prune.py runs/toy-en-de-none-s1 --speedup 2 --runtime int8 --epochs 8
    """

    source: str = setting(REQUIRED, "A run folder, or a model such as hf:NAME.", positional=True)
    by: list[str] = setting(
        [],
        f"The methods that choose what stays: {', '.join(OFFERED)}, or module:function; l0 trains gates. The "
        "default is l0 for --lambda, plan for a speed, a size or --max-drop, and importance for everything "
        "else.",
    )
    also: list[str] = setting(
        [],
        "Further test sets, a table each. Corpora by name or folder, or two files, SOURCE:REFERENCE.",
    )
    show: bool = setting(
        True, "Print how the models compare, and write tables, figures and pages.", rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for choose in self.by:
            check_chooser("--by", choose)
        for recipe in self.recipes(self.by, self.seed, default=[Units(heads=0)] if not self.kinds else []):
            check_parts(recipe)

    def check_model(self) -> None:
        """Nothing: the sizes are those of the base (`pruning.base.settings_of`)."""


def main() -> int:
    return start(
        "prune",
        PruneOptions,
        prune,
        interrupted="the same command with --resume continues where it stopped",
    )


def prune(options: PruneOptions, given: Mapping[str, Any]) -> int:
    """Make the rows that are not finished yet, print how they compare, and bring the pages up to date.
    Returns 1 if a recipe has failed, else 0."""
    from headgates.lab.processes import join
    from headgates.records.named_paths import (
        check_data_dir,
        check_files,
        check_run,
        check_texts,
        check_writable,
    )

    # jobs of SLURM start the processes of each model themselves
    devices, num_nodes = (1, 1) if options.slurm else join(options.devices, options.num_nodes)
    if options.jobs > 1 and devices * num_nodes > 1:
        raise ValueError(
            "--jobs makes models side by side, and --devices or torchrun one model by several processes: "
            "leave one of them out"
        )
    check_run(options.source)
    check_data_dir(options.data_dir)
    check_texts(options.trim_vocabulary)
    check_files(*(place for place in options.shortlist if not place.isdigit()))
    beside = "runs" not in given and not is_foreign(options.source)
    place = Path(options.source)
    if place.is_symlink() or place.name in ("", ".."):  # whose parent is not that of the run
        place = place.resolve()
    runs = str(place.parent) if beside else options.runs
    first(lambda: check_writable(runs))
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.pruning.base import open_base, settings_of

    text = {name: given.get(name) for name in ("data", "src", "tgt")}  # of a model of another library
    base = open_base(options.source, SourceOptions(**text, data_dir=options.data_dir, runs=options.runs))
    of_the_model = text if is_foreign(options.source) else ()
    own = {
        name: value
        for name, value in given.items()
        if name.split(".")[0] in Settings.__dataclass_fields__ and name not in of_the_model
    }
    settings, changed = settings_of(base, own | {"runs": runs, "devices": devices, "num_nodes": num_nodes})
    for line in changed:
        say(f"changed: {line}")
    return compare_recipes(options, given, settings, base, typed=typed_words(own))


def compare_recipes(
    options: PruneOptions,
    given: Mapping[str, Any],
    settings: Settings,
    base: "RunFolder",
    *,
    typed: Sequence[str],
) -> int:
    """typed: the settings that the commands of the last lines repeat."""
    from headgates.gates import heads_left
    from headgates.lab.lab import Lab
    from headgates.models.translator import Translator
    from headgates.pruning.by_score import check_counts
    from headgates.pruning.closing import check_closing
    from headgates.pruning.grid import rows_of, without_repeats

    lab = Lab(settings)
    try:
        recipes = without_repeats(
            options.recipes(options.by, settings.seed, default=usual_budgets(lab, base, options.kinds))
        )
        predictor = lab.text.load(base)
        model = predictor.model
        for recipe in recipes:  # all of them before anything is scored
            if decides(recipe.choose, recipe.budget) and not isinstance(predictor, Translator):
                raise ValueError(
                    f"{recipe.budget.words} is planned here for models that translate, and the task of "
                    f"{base.path} is {settings.task}; give --heads, or plan its model by hg.prune"
                )
            check_closing(recipe.closing, model)
            if isinstance(recipe.budget, Units):
                check_counts(heads_left(model, recipe.kinds), recipe.budget.counts)
        for said in filter(None, dict.fromkeys(map(way, recipes))):
            say(said)
        # before anything is trained: these may not be there, or not fit the vocabulary
        source = lab.text.source(base, predictor)
        also = first(lambda: [source.other(each, settings.test_sentences) for each in options.also])
        lab.asked = recipes[0] if len(recipes) == 1 else None
        named = [f"--name={options.name}"] if options.name is not None and len(recipes) == 1 else []
        rows, failed = rows_of(
            lab, base, recipes, options, lambda recipe: [*words_of(recipe, options.source, given), *named]
        )
        if options.show:
            from headgates.report.compared import show_compared  # its figures take a second to import

            first(lambda: show_compared(lab, base, rows, failed, name=options.name, also=also, typed=typed))
    finally:
        lab.close()
    return 1 if failed else 0


def usual_budgets(lab: "Lab", base: "RunFolder", kinds: Sequence[str]) -> list[Budget]:
    """DEFAULT_SHARES of the heads, and of the neurons, that may close."""
    from headgates.configs.kinds import kinds_named
    from headgates.gates import FFN_KINDS, KINDS, WIDTH, heads_left

    left = heads_left(lab.text.load(base).model, kinds_named(kinds or ["heads"]))
    heads, neurons = (left.select(each).count() if left.select(each) else None for each in (KINDS, FFN_KINDS))
    return [
        Units(
            heads and max(1, round(share * heads)),
            neurons and WIDTH * max(1, round(share * neurons / WIDTH)),
        )
        for share in DEFAULT_SHARES
    ]


def words_of(recipe: Recipe, source: str, given: Mapping[str, Any]) -> list[str]:
    """The command line that makes one recipe alone, with the settings given here; it shows nothing. Who runs
    it adds whether it goes on or begins anew."""
    own = {*RecipeFlags.__dataclass_fields__, *GridOptions.__dataclass_fields__}
    left_out = {*own, "lambda", "by", "also", "show", "source", "seed", "name", "threads", "fresh", "resume"}
    settings = setting_words({name: value for name, value in given.items() if name not in left_out})
    return ["prune", source, *recipe.words(), *settings, "--set=show=false"]


def typed_words(given: Mapping[str, Any]) -> list[str]:
    """The settings given here, as a next command about the same base takes them: without the seed and what
    is of this command alone."""
    left_out = {*OF_THE_BASE, "seed", "name", "unique", "fresh", "resume"}
    return setting_words({name: value for name, value in given.items() if name.split(".")[0] not in left_out})


def setting_words(given: Mapping[str, Any]) -> list[str]:
    """Settings by dotted name as words of a command line."""
    flags = {setting.name: setting.flag for setting in all_settings(PruneOptions) if setting.has_flag}
    return [f"{flags.get(name, f'--set={name}')}={value_word(value)}" for name, value in given.items()]


def value_word(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "[]"
    return "null" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
