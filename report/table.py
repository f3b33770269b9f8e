"""Tables on the terminal, and what is said of one run in sentences. No number is cut: a table that is wider
than the terminal breaks into parts that stand below one another, each with the columns of words."""

import math
import os
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headgates.configs.closing import RESAMPLE
from headgates.configs.program import command_line
from headgates.configs.recipe import Listed, Pieces, Recipe, list_words
from headgates.configs.settings import Settings
from headgates.lightning_modules.convergence import EPOCHS
from headgates.records.folder import RunFolder
from headgates.records.row import BASE, ResultRow, SpeedRecord, other_words
from headgates.tasks import task_of

TERMINAL_WIDTH = 120  # characters, where the output is no terminal and COLUMNS does not say


LONG_ENOUGH = 1.0  # seconds of a pass; the ratio of two shorter ones is chance


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> None:
    """Print the table unless it has no row, without the columns that are empty in all. The first `words`
    columns hold words, the others numbers."""
    cells = [list(row) for row in rows]
    if not cells:
        return
    full = [i for i in range(len(columns)) if i < words or any(row[i] for row in cells)]
    columns, cells = [columns[i] for i in full], [[row[i] for i in full] for row in cells]
    known = Console().is_terminal or "COLUMNS" in os.environ
    console = Console(width=None if known else TERMINAL_WIDTH, markup=False)
    # above, not as the table's own title: that is folded to the table's width
    console.print(title, highlight=False)
    for chosen in parts([*zip(columns, *cells, strict=True)], words, console.width):
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for i in chosen:
            side = "left" if i < words else "right"
            table.add_column(columns[i], justify=side, no_wrap=i >= words, overflow="fold")  # type: ignore[arg-type]
        for row in cells:
            table.add_row(*(row[i] for i in chosen))
        console.print(table)


def parts(columns: Sequence[Sequence[str]], words: int, width: int) -> list[list[int]]:
    """The numbers of the columns in each part of a table: those of words, and as many others as fit."""
    wide = [2 + max(map(len, column)) for column in columns]
    named = list(range(words))
    found = [named]
    for i in range(words, len(columns)):
        if found[-1] != named and sum(wide[j] for j in [*found[-1], i]) > width:
            found.append(named)
        found[-1] = [*found[-1], i]
    return found


def number_text(value: float | None, form: str) -> str:
    """Empty for None."""
    return "" if value is None else format(value, form)


def interval_text(interval: Sequence[float] | None, form: str = "+.2f") -> str:
    """The two ends of an interval, each in the format `form`; empty for None."""
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


# ---------------------------------------------------------------- sentences


def reference_of(run: RunFolder) -> ResultRow:
    """The row that the others of a run are compared with. Raises ValueError where result.json names none."""
    if (reference := run.result().get("reference")) is None:
        raise run.foreign("result.json", "it names no reference")
    return run.row_of(reference)


def is_unlearned(run: RunFolder) -> bool:
    """Whether the reference of a run has not learned its task."""
    reference = run.result().get("reference")
    return any(row.unlearned for row in run.rows() if row.system == reference)


def search_title(search: str) -> str:
    """The search as part of a title, with what parts it from the rest; nothing for a task without one."""
    return search and f"{search}, "


def layers_text(row: ResultRow) -> str:
    """The encoder's and the decoder's layers of all, such as 6+4/6+6; empty where none is gone."""
    left = (row.layers_left or {}).values()
    return "/".join("+".join(str(count(stack)) for stack in left) for count in (sum, len) if left)


def size_sentences(rows: Sequence[ResultRow]) -> list[str]:
    """How much smaller and faster the model without its closed heads is than the base, in one sentence, where
    both were measured on this machine."""
    base, smallest = rows[0], min(rows, key=lambda row: (row.seconds is None, row.parameters or math.inf))
    if not (base.seconds and smallest.seconds and base.parameters and smallest.parameters):
        return []
    if smallest.open_words == base.open_words:
        return []
    share = smallest.parameters / base.parameters
    said = f"{smallest.label}: {share:.0%} of the parameters"
    if min(base.seconds, smallest.seconds) >= LONG_ENOUGH:
        ratio, search = base.seconds / smallest.seconds, base.search and f" with {base.search}"
        how = f"measured once each, one pass over the test set{search}"
        said += f", {ratio:.2f} times as fast as {base.label} ({how})"
    return [said]


def next_commands(run: RunFolder) -> list[str]:
    """What to type with the model of a finished run."""
    config = run.config()
    task, unlearned = task_of(config), is_unlearned(run)
    by_ct2 = (config.get("model") or {}).get("decoder_mixer", "attention") == "attention"
    use = [
        f"{command_line('translate', run.path)} --input FILE translates a file",
        f"{command_line('translate', run.path)} --input FILE --runtime int8 does so by CTranslate2 in int8",
        f"{command_line('export', run.path)} --to ct2 writes that model",
    ][: 3 if by_ct2 else 1]
    look = [
        f"{command_line('analyze', run.path)} --siblings says what the heads do",
        f"{command_line('explore', run.path)} shows what they do with a sentence that you type",
    ]
    return [*use, *look] if task.searches and not unlearned else look[:1]


def result_sentence(run: RunFolder) -> str | None:
    """What came out of a run, in one sentence: text, languages, heads and metric; and whether the reference
    has learned its task. None where it was never evaluated."""
    own = run.own_row()
    if own is None:
        return None
    config, corpus = run.config(), (run.result().get("data") or {}).get("corpus", "its text")
    task, reference = task_of(config), reference_of(run)
    title = next((metric.title for metric in task.metrics if metric.name == own.metric), own.metric)
    heads = f"with {own.open_words} the model has {own.main.value:.2f} {title}"
    sentence = f"{corpus}, {task.run_words(config)[1]}: {heads}"
    if own.main.difference is not None and own.system != own.reference and not reference.unlearned:
        interval = interval_text(own.main.difference_ci95)
        sentence += f", {own.main.difference:+.2f} ({interval}) against {reference.label}"
    lines, search = own.evaluation.get("sentences"), own.search and f" ({own.search})"
    sentence += f", on {lines:,} test sentences{search}." if lines else "."
    return f"{sentence} {reference.unlearned}." if reference.unlearned else sentence


def speed_sentence(row: ResultRow, speed: SpeedRecord, whole: int) -> str:
    """How fast and how good a planned model is, beside the unpruned one with so many parameters. Of a budget
    that is no speed, the share that was planned."""
    lost, reached = row.main, f"{speed['measured']['median']:.2f}x as fast by {speed['timed']}"
    planned = f"predicted {speed['predicted']:.2f}x{other_words(speed.get('predicted_on_other_lines'))}"
    if row.missed:
        planned += f", missed: {row.missed}"
    if speed["budget"] != "speedup":
        planned = f"planned: {1 / speed['predicted']:.0%} of the {speed['unit']}"
    return (
        f"{reached} ({planned}) at {lost.difference:+.1f} "
        f"{row.metric.upper()} ({interval_text(lost.difference_ci95, '+.1f')}), "
        f"{(row.parameters or 0) / whole:.0%} of the parameters{rows_words(speed)}"
    )


def rows_words(speed: SpeedRecord) -> str:
    """What the shortlist of a planned model leaves of its output layer; empty without one."""
    if (found := speed.get("shortlist")) is None:
        return ""
    return f", {found['rows']:,.0f} of {found['of']:,} output rows ({list_words(found['by'])})"


def own_speed(run: RunFolder) -> str | None:
    """`speed_sentence` of a run's own model; None where it was not planned."""
    row = run.own_row()
    return speed_sentence(row, row.speed, run.row_of(BASE).parameters or 1) if row and row.speed else None


def show_path(row: ResultRow, metric: str) -> None:
    """Print the models that were tried on the way to a row's, in the order in which they were; nothing where
    none were."""
    columns = ("asked", "heads", metric, "lost", "95% bound", "valid. loss", "accepted")
    rows = [
        (
            each["asked"],
            f"{each['heads']}",
            f"{each['score']:.2f}",
            f"{each['lost']:.2f}",
            f"{each['bound']:.2f}",
            number_text(each["loss"], ".4f"),
            "yes" if each["accepted"] else "no",
        )
        for each in row.path or []
    ]
    asked = f", {row.recipe.budget.words}" if row.recipe else ""
    show(f"{row.label}{asked}: what was tried, on validation", columns, rows)


def lacks_training(row: ResultRow) -> bool:
    """Whether a model that missed what was asked for may reach it by more training. Only a model that was not
    trained, or does not end, writes longer lines than it has to; another is as fast as its shape."""
    return bool(row.missed and row.recipe and (row.is_endless or not row.recipe.epochs))


def broken_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The models that were not trained and lost more than half of the metric of the first base among the
    rows; none where that base learned nothing. Without those that no recipe trains."""
    base = next((row for row in rows if row.is_base), None)
    if base is None or base.unlearned:
        return []
    half = base.main.value / 2
    return [
        row
        for row in rows
        if row.recipe and is_trainable(row.recipe) and not row.recipe.epochs and row.main.value < half
    ]


def is_trainable(recipe: Recipe) -> bool:
    """Whether `--epochs` is a flag of it: steps of their own and sampled outputs refuse it."""
    return recipe.closing != RESAMPLE and not isinstance(recipe.budget, Pieces | Listed)


def cure_of(row: ResultRow) -> str:
    """What to do about a model that missed what was asked for."""
    if lacks_training(row):
        trained = row.recipe and row.recipe.epochs
        return "train it for longer, or ask for less" if trained else "it lacks training: give --epochs"
    reached = math.floor(100 * row.speed["measured"]["median"]) / 100 if row.speed else 0.0
    return f"ask for --speedup {reached:g} or less" if reached > 1 else "it is no faster than the base"


def warnings_of(rows: Sequence[ResultRow], settings: Settings) -> list[str]:
    """What a reader of the table must know: a wish that was missed, models that lost most of what the base
    could, a warm-up longer than its stage, bases not converged."""
    lines = []
    if broken := broken_rows(rows):
        names = "; ".join(row.recipe.title for row in broken if row.recipe)
        half = f"half of the base's {rows[0].metric.upper()}"
        lines.append(f"more than {half} is lost, and nothing was trained: {names}; give --epochs")
    for row in rows:
        if row.missed and row.recipe:
            lines.append(f"{row.label}, {row.recipe.budget.words}: missed ({row.missed}); {cure_of(row)}")
        if (stage := row.stage) is None:
            continue
        group = "train" if row.system == BASE else "finetune"
        warm_up, steps = getattr(settings, group).warmup_steps, stage["steps"]
        if warm_up >= steps:
            lines.append(
                f"{row.label}: the learning rate never reached its peak ({group}.warmup_steps {warm_up}, and "
                f"{steps} steps); lower it or train for longer"
            )
        if not row.is_base:
            continue
        losses = row.losses
        if stage["converged"] is None or len(losses) <= EPOCHS:
            lines.append(f"{row.label}: too few epochs ({len(losses)}) to say if it is converged")
        elif not stage["converged"]:
            fell = 1 - min(losses) / min(losses[:-EPOCHS])
            lines.append(
                f"{row.label} is not converged: its validation loss still fell by {fell:.1%} over the last "
                f"{EPOCHS} epochs; train it for longer"
            )
    return lines
