"""What a command ends with that made rows: what they say in sentences, their tables, the files of a
comparison, the pages, and what to type next."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from headgates.analysis.significance import RESAMPLES, resample_counts
from headgates.configs.closing import RESAMPLE
from headgates.configs.own_file import own_file
from headgates.configs.program import command_line
from headgates.configs.recipe import PIECES, SHORTLIST, UNPRUNED, Lambda, Recipe, Speed
from headgates.configs.recipe_flags import LEARNED_EPOCHS
from headgates.lab.evaluation import measures_of, scored_on
from headgates.lab.lab import Lab
from headgates.lab.tracker import log_grid
from headgates.models.progress import say
from headgates.pruning.grid import Failed
from headgates.pruning.make import Row, row_of
from headgates.records.folder import RunFolder, is_made
from headgates.records.row import BASE, RuntimeRecord, SpeedRecord
from headgates.records.source import Lines, open_source
from headgates.report.compare_files import print_compared, write_compared
from headgates.report.compare_groups import Compared
from headgates.report.comparisons import COMPARISON_NAME, ComparisonRecord
from headgates.report.fill import update_pages
from headgates.report.pruning_figures import draw_dynamics
from headgates.report.shapes import own_shape
from headgates.report.shortlisted import print_listed_on, print_shortlisted
from headgates.report.table import (
    broken_rows,
    is_unlearned,
    lacks_training,
    next_commands,
    result_sentence,
    show_path,
    size_sentences,
    warnings_of,
)
from headgates.report.trimmed import print_trimmed


def show_compared(
    lab: Lab,
    base: RunFolder,
    rows: Sequence[Row],
    failed: Sequence[Failed],
    *,
    name: str | None = None,
    also: Sequence[tuple[str, Lines]] = (),
    look: int = 0,
    typed: Sequence[str] = (),
) -> None:
    """Print how the rows of recipes compare with the base, which may be alone; several rows, or those of a
    named comparison, are also written into RUNS/compare-NAME.

    failed: recipes without a row. also: further test sets by name, a table each. look: validation sentences
    of the first look at the heads, for the pages. typed: the settings of the command, which the commands that
    it names repeat. Raises ValueError where all recipes failed."""
    if failed and not rows:
        raise ValueError(f"no recipe could be made; the first: {failed[0]}")
    made = [row for row in rows if row.recipe and row.recipe.choose != UNPRUNED]
    bases = bases_of(lab, base, rows)
    folder = RunFolder(own_file(lab.settings.runs, f"compare-{name or base.path.resolve().name}"))
    writes = bool(made) and (len(rows) > 1 or name is not None)
    show_dynamics(lab, base)
    show_test_set(lab, base, made, bases, failed, folder if writes else None)
    for row in made:
        show_path(row.result, lab.task.metrics[0].title)
    if len(rows) <= 1:
        print_one(rows[0] if rows else bases[0], bases[0])
    for line in warnings_of([row.result for row in [*bases, *made]], lab.settings):
        print(line)
    for on, test in also:
        say(f"{len(made) + len(bases)} systems on {on}")
        ours, theirs = (on_text(base, some, test) for some in (made, bases))
        place = RunFolder(folder / on) if writes else None
        show_test_set(lab, base, ours, theirs, failed, place, on=on)
        for row in made:
            if row.recipe and row.recipe.choose == SHORTLIST:
                print_listed_on(row.run, base, on, test)
    if writes:
        log(lab, base, made, folder)
    for each in failed:
        print(f"failed: {each}; the same command tries it again")
    runs = [row.run for row in rows]
    corpus = lab.text.corpus
    for page in update_pages(
        (runs or [base])[0], say, data_dir=lab.settings.data_dir, corpus=corpus, look=look, beside=runs
    ):
        print(f"report: {page}")
    # of heads whose outputs are sampled there is no model, and one that does not end is no result
    kept = [
        row.run for row in made if row.recipe and row.recipe.closing != RESAMPLE and not row.result.is_endless
    ]
    lacking = [row.result for row in made if lacks_training(row.result)]
    if len(made) == 1:  # of several, some are asked for to see where they break
        lacking += broken_rows([bases[0].result, made[0].result])
    recipes_lacking = (result.recipe for result in lacking if result.recipe)
    lines = [*dict.fromkeys(trained_command(base, recipe, typed) for recipe in recipes_lacking)]
    lines += next_commands(kept[0] if len(rows) == len(kept) == 1 else base)
    recipes = [row.recipe for row in made if row.recipe and isinstance(row.recipe.budget, Lambda)]
    recipes = [recipe for recipe in recipes if not isinstance(recipe.budget, Lambda) or recipe.budget.price]
    lines += [
        prices_command(base, recipe, typed) for recipe in recipes[-1:] if recipe.epochs and not recipe.refit
    ]
    speeds = [row for row in made if row.recipe and isinstance(row.recipe.budget, Speed)]
    if lab.task.searches and not is_unlearned(base) and not speeds and not is_made(base.config()):
        command = prune_command(base, ["--speedup", "2", "--epochs", "3"], typed)
        lines.append(f"{command} looks for one that is twice as fast")
    if not runs:
        lines.append(f"{prune_command(base, [], typed)} closes heads by importance and compares")
    print("next:", *lines, sep="\n  ")


def trained_command(base: RunFolder, recipe: Recipe, typed: Sequence[str]) -> str:
    """What makes the same with more training."""
    more = replace(recipe, epochs=recipe.epochs + LEARNED_EPOCHS)
    return f"{prune_command(base, more.words(), typed)} trains a new one for {more.epochs} epochs"


def prices_command(base: RunFolder, recipe: Recipe, typed: Sequence[str]) -> str:
    """What shows what the prices below and above a recipe's give."""
    assert isinstance(recipe.budget, Lambda)
    prices = ",".join(f"{recipe.budget.price * factor:.3g}" for factor in (1 / 3, 1, 3))
    words = f"--by {recipe.choose} --max-drop 0.5 --lambda {prices} --epochs {recipe.epochs}".split()
    words += ["--kinds", ",".join(recipe.kinds)] * (recipe.kinds != Recipe("l0", recipe.budget).kinds)
    return f"{prune_command(base, words, typed)} says what lower and higher prices give"


def prune_command(base: RunFolder, words: Sequence[str], typed: Sequence[str]) -> str:
    """`prune` of the base as a shell takes it. typed: settings of the command before."""
    return command_line("prune", base.path, *words, *typed)


def bases_of(lab: Lab, base: RunFolder, rows: Iterable[Row]) -> list[Row]:
    """The base, and the base trained on, of every seed and length, as the runs of the rows hold them."""
    found: dict[Recipe | None, Row] = {}
    for row in rows:
        for result in row.run.rows():
            if result.is_base:
                each = row_of(row.run, lab, result.system)
                found.setdefault(each.recipe, each)
    if None not in found:
        found[None] = row_of(base, lab, BASE)
    return [found.pop(None), *found.values()]


def show_test_set(
    lab: Lab,
    base: RunFolder,
    made: Sequence[Row],
    bases: Sequence[Row],
    failed: Sequence[Failed],
    folder: RunFolder | None,
    on: str = "",
) -> None:
    """Print the sentences and tables of one test set, and write them into the folder. on: its name, where it
    is not the base's own."""
    metrics, on = lab.task.metrics, on and f" on {on}"
    compared = Compared(made, bases, resample_counts(len(bases[0].scored), RESAMPLES))
    if folder is not None:
        write_compared(
            compared,
            folder,
            metrics=metrics,
            title=f"{base.path.resolve().name}{on}: smaller models compared",
            about={"base": base.path.name, "base_hash": base.run_hash()},
            failed=list(map(str, failed)),
            report=say,
        )
    print_compared(compared, metrics=metrics, title=f"{base.path}{on}")


def show_dynamics(lab: Lab, base: RunFolder) -> None:
    """Draw what --dynamics measured while the base trained, where that is not drawn yet."""
    if not (base / "curves/dynamics.csv").is_file() or (base / "curves/dynamics.png").is_file():
        return
    from headgates.pruning.dynamics import CURVE_NAME, read_rows  # with the trainer, for seconds

    title = f"{base.path.name}: heads closed while the base trains"
    draw_dynamics(read_rows(base), base / CURVE_NAME, metric=lab.task.metrics[0], title=title)


def print_one(row: Row, base: Row) -> None:
    """What is said of one model beside its table: its size, shape and speed, of a base its result."""
    own = row.recipe is None and row.result in row.run.rows()  # and not of other test lines
    if own and (sentence := result_sentence(row.run)) is not None:
        print(sentence)
    if row.result.speed is None:  # measured in turns, which a single pass would deny
        for line in size_sentences([base.result, row.result]):
            print(line)
    choose = row.recipe and row.recipe.choose
    if choose == PIECES:
        print_trimmed(row.run)
    elif choose == SHORTLIST:
        print_shortlisted(row.run)
    else:
        own_shape(row.run)


def on_text(base: RunFolder, rows: Sequence[Row], test: Lines) -> list[Row]:
    """The rows on other test lines, whose losses stay those of validation; without heads whose outputs are
    sampled, of which no model is kept."""
    found = []
    for row in rows:
        if row.recipe and row.recipe.closing == RESAMPLE:
            continue
        # the base may be a smaller model itself, which its own folder calls so
        own = base.own_system() if row.result.system == BASE else row.result.system
        folder = base if row.result.system == BASE else row.run
        scored = scored_on(open_source(folder.path, own), test, row.scored.metrics)
        result = replace(
            row.result,
            measures=measures_of(scored),
            reference=None,
            evaluation={},
            seconds=None,
            speed=without_scores(row.result.speed),
        )
        found.append(replace(row, result=result, scored=scored))
    return found


def without_scores(speed: SpeedRecord | None) -> SpeedRecord | None:
    """The speeds by each runtime alone: its scores are those of the base's own test lines."""
    if speed is None:
        return None
    runtimes = {
        name: RuntimeRecord(
            measured=each["measured"],
            milliseconds=each["milliseconds"],
            other_lines=each.get("other_lines"),
        )
        for name, each in speed["runtimes"].items()
    }
    return {**speed, "runtimes": runtimes}


def log(lab: Lab, base: RunFolder, made: Sequence[Row], folder: RunFolder) -> None:
    """Log the table, the figure and the sentences of a comparison."""
    content = folder.read_json(f"{COMPARISON_NAME}.json", ComparisonRecord)
    log_grid(
        folder,
        COMPARISON_NAME,
        logger=lab.settings.logger,
        kind="comparison",
        base=base,
        config={"recipes": [row.title for row in made]},
        summary={"summary": "\n".join(content["summary"]), "ranks": json.dumps(content["ranks"])},
    )
