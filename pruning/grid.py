"""Make the rows of many recipes: one after the other in this process, or several at once, each in a process
of its own, here or in jobs of SLURM.

A finished row is found and never made again. A recipe that fails does not stop the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from headgates.configs.cli import config_hash
from headgates.configs.grid import GridOptions
from headgates.configs.recipe import Recipe
from headgates.lab.lab import Lab
from headgates.models.progress import minutes, say
from headgates.pruning.at_once import at_once, check_precision, several
from headgates.pruning.choosers import is_drawn
from headgates.pruning.make import Row, make, recipe_key
from headgates.records.fingerprint import trains
from headgates.records.folder import RunFolder, find_runs
from headgates.records.provenance import device_name


@dataclass(frozen=True)
class Failed:
    """A recipe without a row, and why."""

    recipe: Recipe
    error: str

    def __str__(self) -> str:
        return f"{self.recipe.title}: {self.error}"


def without_repeats(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes, of those that no seed changes the first seed's alone."""
    first_seed = min((recipe.seed for recipe in recipes), default=0)
    return [recipe for recipe in recipes if recipe.seed == first_seed or is_drawn(recipe)]


def rows_of(
    lab: Lab,
    base: RunFolder,
    recipes: Sequence[Recipe],
    options: GridOptions,
    words: Callable[[Recipe], Sequence[str]],
) -> tuple[list[Row], list[Failed]]:
    """The rows of the recipes that could be made, in their order, and the others. words: the command line
    that makes one. Raises ValueError as `at_once` does."""
    waiting = waiting_of(lab, base, recipes)
    if len(recipes) > 1 or waiting:
        say(f"{of_them(recipes, waiting)}{estimate(lab, base, waiting)}")
    failed: dict[Recipe, Failed] = {}
    if not options.slurm:  # beside each other, on shares of the cores, models are timed wrongly
        waiting = [recipe for recipe in waiting if not recipe.is_timed]
    if several(options) and len(waiting) > (0 if options.slurm else 1):
        failed = failed_at_once(lab, base, waiting, options, words)
    rows, more = in_turn(lab, base, [recipe for recipe in recipes if recipe not in failed])
    return rows, [*failed.values(), *more.values()]


def waiting_of(lab: Lab, base: RunFolder, recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes whose runs are not finished."""
    done = set() if lab.settings.fresh else finished_hashes(lab.settings.runs)
    return [each for each in recipes if config_hash(recipe_key(lab, base, each)) not in done]


def failed_at_once(
    lab: Lab,
    base: RunFolder,
    recipes: Sequence[Recipe],
    options: GridOptions,
    words: Callable[[Recipe], Sequence[str]],
) -> dict[Recipe, Failed]:
    """Make the runs of recipes in processes of their own; those that failed. Arguments as `rows_of`.

    The base trained as long comes first, and what waits for it last. Jobs of SLURM would wait on a machine
    each, so there it is made here."""
    if any(map(trains, recipes)):
        check_precision(options, lab.settings.precision)
    as_long = dict.fromkeys(each.trained_as_long for each in recipes if each.epochs)
    alone = waiting_of(lab, base, list(as_long))
    if options.slurm:
        in_turn(lab, base, alone)
        alone = []
    recipes = [*alone, *sorted(recipes, key=lambda recipe: bool(recipe.epochs))]
    folder = Path(lab.settings.runs) / f"logs-{base.path.resolve().name}"
    more = ["--fresh" if lab.settings.fresh else "--resume"]
    more += ["--set=unique=true"] * (not lab.settings.unique)  # a name that is taken gets a hash, as here
    if lab.settings.precision == "auto" and any(map(trains, recipes)):
        more.append(f"--precision={lab.precision}")  # with fewer threads each might choose another
    commands = {recipe.title: [*words(recipe), *more] for recipe in recipes}
    if lab.settings.fresh:
        lab.repeated |= {config_hash(recipe_key(lab, base, recipe)) for recipe in recipes}
    errors = at_once(commands, folder, options, threads=lab.settings.threads)
    return {each: Failed(each, errors[each.title]) for each in recipes if each.title in errors}


def of_them(recipes: Sequence[Recipe], waiting: Sequence[Recipe]) -> str:
    if len(recipes) == 1:
        return "one recipe to make"
    return f"{len(recipes)} recipes, {len(waiting)} of them to make"


def in_turn(lab: Lab, base: RunFolder, recipes: Sequence[Recipe]) -> tuple[list[Row], dict[Recipe, Failed]]:
    """Make the rows in this process. The error of a single recipe is raised."""
    rows, failed = list[Row](), dict[Recipe, Failed]()
    for recipe in recipes:
        try:
            rows.append(make(lab, base, recipe))
        except (ValueError, OSError) as error:
            if len(recipes) == 1:
                raise
            failed[recipe] = Failed(recipe, " ".join(str(error).split()))
            say(f"failed: {failed[recipe]}")
    return rows, failed


def finished_hashes(runs: str) -> set[str | None]:
    """What the finished runs below a folder are found by."""
    return {run.run_hash() for run in find_runs(runs) if run.finished()}


def estimate(lab: Lab, base: RunFolder, waiting: Sequence[Recipe]) -> str:
    """How long the recipes that wait will train, and the base as long as each, by the times that the base's
    training recorded; empty where those are of another machine."""
    as_long = dict.fromkeys(recipe.trained_as_long for recipe in waiting if recipe.epochs)
    alone = waiting_of(lab, base, list(as_long))
    epochs = sum(recipe.epochs for recipe in {*waiting, *alone} if trains(recipe))
    stages = [row.stage for row in base.rows() if row.stage and row.stage.get("seconds")]
    if not epochs or not stages or base.result().get("device") != device_name():
        return ""
    epoch = fmean(stage["seconds"] / max(1, stage["epochs"]) for stage in stages)
    trained = "them and the base beside them" if alone else "them"
    words = f"{epochs} {'epoch' if epochs == 1 else 'epochs'} in all"
    time = minutes(epoch * epochs)
    return f"; training {trained}, {words}, takes about {time}, by the time of the base's"
