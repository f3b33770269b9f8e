"""Write a comparison: compare.csv (a row a run), compare.md, compare.json with what made it, compare.png and
.svg.

compare.json: {"title", "base", "base_hash", "metric", what made the table, "summary": [sentences], "ranks":
{epochs: {label: rank}}, "groups": [the columns of each group], "leads": [learned gates minus each other
recipe of as many heads with as much training], "failed": [recipes without a run], "runs": {run: what made
it}}
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from typing import Any

from headgates.analysis.metrics import Metric
from headgates.configs.closing import ZERO
from headgates.configs.recipe import Speed, Units
from headgates.models.progress import Report
from headgates.records.folder import RunFolder
from headgates.records.provenance import device_name, provenance
from headgates.records.row import ResultRow
from headgates.records.table import TableRow, markdown_table, write_table
from headgates.report.compare_columns import comparison_columns, entries, int8_alone, speeds_of, table_of
from headgates.report.compare_groups import Compared, Difference, Group, together
from headgates.report.compare_summary import summary, trained
from headgates.report.comparisons import COMPARISON_NAME
from headgates.report.drawing import no_rows
from headgates.report.palette import look_of
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.table import search_title, show

PROVENANCE = ("command", "commit", "seed", "device", "precision", "threads", "versions", "date")  # of a run
MADE_BY = ("command", "commit", "device", "versions", "date")  # of a table, without precision and seed
FILE_KINDS = {"csv": "table", "md": "table", "png": "figure", "svg": "figure", "json": "made by"}


def sentences_of(compared: Compared, metric: Metric) -> list[str]:
    return [*summary(compared, metric=metric.title), *int8_alone(compared, metric)]


def write_compared(
    compared: Compared,
    folder: RunFolder,
    *,
    metrics: Sequence[Metric],
    title: str,
    about: Mapping[str, Any],
    failed: Sequence[str] = (),
    report: Report,
) -> None:
    """Write all files into the folder. about: further entries of compare.json, such as the base; failed:
    recipes that have no run, and why."""
    sentences, groups = sentences_of(compared, metrics[0]), in_order(compared)
    runs = {row.run.path.name: row.run.result() for group in groups for row in group.rows}
    write_table(folder, f"{COMPARISON_NAME}.csv", run_rows(compared, metrics))
    folder.write_text(
        f"{COMPARISON_NAME}.md", "\n".join(markdown(compared, metrics, sentences, title, failed))
    )
    draw_compared(compared, folder / COMPARISON_NAME, metric=metrics[0].title, title=title)
    made_by = provenance(device_name(), "none", 0)
    columns = comparison_columns(compared, metrics, differences_of(compared))
    group_rows = [entries(columns, group) for group in groups]
    content = {
        "title": title,
        "metric": metrics[0].title,
        **about,
        **{name: made_by[name] for name in MADE_BY},
        "summary": sentences,
        "ranks": {str(epochs): compared.ranks(epochs) for epochs in compared.shown_epochs},
        "groups": [{name: value for name, value in row.items() if value is not None} for row in group_rows],
        "leads": leads(compared),
        "failed": list(failed),
        "runs": {
            run: {name: result.get(name) for name in PROVENANCE} for run, result in sorted(runs.items())
        },
    }
    folder.write_json(f"{COMPARISON_NAME}.json", content)
    for end, kind in FILE_KINDS.items():
        report(f"{kind}: {folder / f'{COMPARISON_NAME}.{end}'}")


def in_order(compared: Compared) -> list[Group]:
    """The bases, then by training, heads and neurons (the most first) and score (the best first)."""
    bases = [compared.base, *compared.continued.values()]

    def place(group: Group) -> Any:
        return group.epochs, -group.heads, -(group.first.neurons_open or 0), -group.mean, group.label

    return bases + sorted(compared.groups, key=place)


def differences_of(compared: Compared) -> dict[Group, Difference]:
    """Of every group from its reference; none where a base learned nothing."""
    found = dict[Group, Difference]()
    for epochs in compared.shown_epochs:
        found |= compared.from_reference(epochs)
    return found


# ---------------------------------------------------------------- rows


def run_rows(compared: Compared, metrics: Sequence[Metric]) -> list[TableRow]:
    """The columns of every run alone, with its difference from the reference of as much training."""
    rows = []
    for group in in_order(compared):
        for row in group.rows:
            alone = Group([row], group.counts)
            own = {}
            if not group.is_base and group.epochs in compared.shown_epochs:
                own[alone] = alone.minus(compared.reference(group.epochs))
            seed = row.recipe.seed if row.recipe else None
            which: TableRow = {"run": row.run.path.name, "system": row.result.system, "seed": seed}
            rows.append(which | entries(comparison_columns(compared, metrics, own), alone))
    return rows


def leads(compared: Compared) -> list[TableRow]:
    """The paired differences of learned gates from every other recipe with as many heads and as much
    training; none where a base learned nothing."""
    rows: list[TableRow] = []
    for epochs in compared.shown_epochs:
        for size in compared.sizes(epochs):
            groups = compared.at(epochs, size)
            numbers = {"heads": size.heads, "neurons": size.neurons} if isinstance(size, Units) else {}
            asked = {name: number for name, number in numbers.items() if number is not None}
            pairs = [(a, b) for a, b in product(groups, groups) if a.learned and b is not a]
            for (group, other), difference in together(pairs).items():
                named = {"method": group.label, "against": other.label, "epochs": epochs, **asked}
                overlap = group.overlap(other)
                rows.append(named | difference.columns | ({} if overlap is None else {"overlap": overlap}))
    return rows


# ---------------------------------------------------------------- words


def group_tables(compared: Compared, metrics: Sequence[Metric]) -> dict[int, list[list[str]]]:
    """epochs -> the head and the rows of its table: the groups of so much training, after the bases that they
    are compared with."""
    columns = comparison_columns(compared, metrics, differences_of(compared))
    tables = {}
    for epochs in compared.all_epochs:
        bases = compared.base, compared.continued.get(epochs)
        groups = [
            group
            for group in in_order(compared)
            if group in bases or (group.epochs == epochs and not group.is_base)
        ]
        tables[epochs] = table_of(columns, groups, compared.reference(epochs))
    return tables


def markdown(
    compared: Compared, metrics: Sequence[Metric], sentences: Sequence[str], title: str, failed: Sequence[str]
) -> list[str]:
    """The lines of compare.md."""
    lines = [f"# {title}", "", *(f"- {sentence}" for sentence in sentences)]
    lines += [*(f"- no run: {name}" for name in failed), ""]
    for epochs, (head, *rows) in group_tables(compared, metrics).items():
        lines += [f"## {trained(epochs).capitalize()}", "", *markdown_table(head, rows)]
    signatures = compared.base.rows[0].scored.signatures
    return [*lines, *(f"- {name} `{signature}`" for name, signature in signatures.items()), ""]


def print_compared(compared: Compared, *, metrics: Sequence[Metric], title: str) -> None:
    """Print the summary, then a table for each amount of training, and the signatures of the metrics."""
    for sentence in sentences_of(compared, metrics[0]) if compared.groups else []:
        print(sentence)
    for epochs, (head, *rows) in group_tables(compared, metrics).items():
        show(f"{title}: test set, {search_title(compared.base.first.search)}{trained(epochs)}", head, rows)
    print(*compared.base.rows[0].scored.signatures.values(), sep="\n")


# ---------------------------------------------------------------- figure


def draw_compared(compared: Compared, path: str | Path, *, metric: str, title: str) -> None:
    """Draw the metric against open heads, parameters or speed (`place_of`): a row of panels for each amount
    of training, a column for each closing where some are compared. Raises ValueError without a group."""
    if not compared.groups:
        raise no_rows("recipe of a comparison")
    what = f"open heads of {compared.base.first.heads_total}"
    if with_neurons(compared):
        what = f"parameters in thousands, of {(compared.base.first.parameters or 0) / 1000:,.0f}"
    xlabel = f"{what} (fewer to the right)"
    if fast := at_speeds(compared):
        timed = next(each["timed"] for group in compared.groups for each in speeds_of(group))
        xlabel = f"times as fast as unpruned ({timed})"
    ylabel = ", ".join(filter(None, (metric, "test set", compared.base.first.search)))
    draw_scatter(panels(compared), path, title=title, xlabel=xlabel, ylabel=ylabel, fewer=not fast)


def panels(compared: Compared) -> list[list[Panel]]:
    """A line is the mean over seeds, its band the middle 95% of the bootstrap over sentences, a mark one
    seed. Learned gates stand in the panels of every closing, thicker and on top."""
    by_training = [
        {group.recipe.closing for group in compared.groups if group.epochs == epochs and not group.learned}
        for epochs in compared.all_epochs
    ]
    across: list[str | None] = [None]
    if any(len(closings) > 1 for closings in by_training):
        across = [*sorted(set.union(*by_training), key=lambda closing: (closing != ZERO, closing))]

    def panel(epochs: int, closing: str | None) -> Panel:
        groups = [
            group
            for group in compared.groups
            if group.epochs == epochs and (group.learned or closing in (None, group.recipe.closing))
        ]

        def name(group: Group) -> str:
            if closing is None:
                return group.label
            return replace(group.recipe, refit=None, closed_output=ZERO).label

        groups.sort(key=lambda group: (group.learned, name(group), -group.heads))
        series = [
            drawn_series(words, list(same), place_of(compared), fewer=not at_speeds(compared))
            for words, same in groupby(groups, name)
        ]
        bases = [compared.base, *filter(None, [compared.continued.get(epochs)])]
        title = trained(epochs) + (f", closed heads: {closing}" if closing else "")
        return Panel(title, series, {group.label: group.mean for group in bases})

    return [[panel(epochs, closing) for closing in across] for epochs in compared.all_epochs]


def at_speeds(compared: Compared) -> bool:
    """Whether recipes were asked for speeds, and all of them have one."""
    return any(isinstance(group.size, Speed) for group in compared.groups) and all(
        map(speeds_of, compared.groups)
    )


def with_neurons(compared: Compared) -> bool:
    """Whether groups differ in their feed-forward neurons or layers."""
    return any(group.first.neurons_open is not None or group.first.layers_left for group in compared.groups)


def place_of(compared: Compared) -> Callable[[ResultRow], float]:
    """Where a model stands in the figure: by open heads, or by the thousands of its parameters where groups
    differ in their feed-forward neurons, or by how many times as fast it is."""
    if at_speeds(compared):
        return lambda row: row.speed["measured"]["median"] if row.speed else 0.0
    if with_neurons(compared):
        return lambda row: (row.parameters or 0) / 1000
    return lambda row: row.heads_open


def drawn_series(
    name: str, groups: Sequence[Group], place: Callable[[ResultRow], float], *, fewer: bool
) -> Series:
    """The groups of one line, from the left, which is the most where x falls. place: of a model."""
    left = {group: fmean(place(row.result) for row in group.rows) for group in groups}
    groups = sorted(groups, key=left.__getitem__, reverse=fewer)
    low, high = zip(*(group.interval for group in groups), strict=True)
    return Series(
        name,
        look_of(groups[0].recipe.choose),
        [left[group] for group in groups],
        [group.mean for group in groups],
        low,
        high,
        joined=True,
        band=True,
        width=2.2 if groups[0].learned else 1.3,
        seeds=[(place(row.result), row.result.main.value) for group in groups for row in group.rows],
    )
