"""Write BLEU against open heads for finished runs: a table as CSV and Markdown, a figure, and how each run
was made."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headgates.configs.kinds import KINDS
from headgates.configs.systems import label
from headgates.models.progress import Report, say
from headgates.records.folder import RunFolder
from headgates.records.provenance import device_name, provenance
from headgates.records.row import Measure
from headgates.records.run_rows import FinishedRun, finished_runs, run_rows
from headgates.records.table import markdown_table, write_table
from headgates.report.drawing import Row, column, no_rows
from headgates.report.palette import LOOKS, look_of
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.table import measure_cells, numbers_text

PROVENANCE = ("command", "commit", "seed", "device", "precision", "threads", "versions", "date")  # of a run
MADE_BY = ("command", "commit", "device", "versions", "date")  # of a table, without precision and seed
ENDS = {"csv": "table", "md": "table", "png": "figure", "svg": "figure", "json": "made by"}
FILLS = ("full", "none", "left", "right", "top", "bottom")  # of the markers of each base, in turn
ENLARGED = 3  # the lower systems get a panel of their own where they are this many times as far down


def write_bleu_heads(
    folders: Sequence[RunFolder], out: Path, *, title: str, name: str = "pareto", report: Report = say
) -> list[Path]:
    """Write NAME.csv, .md, .png, .svg and .json (how the table and each run were made) into `out`; return
    their paths. Raises ValueError, before anything is written, if no run is finished, and for runs on
    different test sets."""
    runs = finished_runs(folders, report=report)
    rows, folder = run_rows(runs), RunFolder(out)
    write_table(folder, f"{name}.csv", rows)
    folder.write_text(f"{name}.md", "\n".join(markdown(rows, runs, title)))
    searches = {row.search for run in runs for row in run.folder.rows()}
    metric, search = runs[0].metrics[0].title, searches.pop() if len(searches) == 1 else ""
    draw_bleu_heads(rows, out / name, title=title, search=search, metric=metric)
    made = runs_provenance({run.name: run.result for run in runs})
    folder.write_json(f"{name}.json", {"title": title, **made_by(), "runs": made})
    return tell_files(out, name, report)


def tell_files(folder: Path, name: str, report: Report) -> list[Path]:
    for end, kind in ENDS.items():
        report(f"{kind}: {folder / f'{name}.{end}'}")
    return [folder / f"{name}.{end}" for end in ENDS]


def made_by() -> dict[str, Any]:
    found = provenance(device_name(), "none", 0)
    return {name: found[name] for name in MADE_BY}


def runs_provenance(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """How each run was made, from its result.json."""
    return {run: {name: result.get(name) for name in PROVENANCE} for run, result in sorted(results.items())}


def markdown(rows: Sequence[Row], runs: Sequence[FinishedRun], title: str) -> list[str]:
    """The lines of NAME.md: the rows and how they were measured. A column of bases stands there where there
    are several, one of lambda where a run has one."""
    words = {"system": "system", "base": "base", "lambda": "λ"}
    if len({row["base"] for row in rows}) == 1:
        del words["base"]
    if all(row["lambda"] is None for row in rows):
        del words["lambda"]
    main_metric, *others = runs[0].metrics
    neurons = any(row["neurons_open"] is not None for row in rows)
    head = [*words.values(), "open heads", *KINDS, *["open neurons"] * neurons, main_metric.title, "95%"]
    head += [metric.title for metric in others]
    head += [f"{main_metric.title} against the reference", "95%", "p", "parameters"]
    cells = []
    for row in rows:
        if row["same_as"] or row["system"].endswith("-removed"):
            continue
        first = ["" if row[name] is None else str(row[name]) for name in words]
        first[0] = label(first[0])
        heads = [f"{row['heads_open']}/{row['heads_total']}", *(row[kind] for kind in KINDS)]
        heads += [numbers_text(row["neurons_open"], row["neurons_total"])] * neurons
        between = (row["difference_low"], row["difference_high"])
        main = Measure(row["bleu"], "", (row["bleu_low"], row["bleu_high"]), row["difference"], between)
        main.p_value = row["p_value"]
        further = [row[metric.name] for metric in others]
        measured = measure_cells(main, further, is_reference=row["system"] == row["reference"])
        cells.append([*first, *heads, *measured, f"{row['parameters']:,}"])
    results = [row for run in runs for row in run.folder.rows()]
    one = results[0].evaluation
    found = one.get("search", {}).items()
    search = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found)
    search = search and f"; search: {search}"
    signatures = {measure.signature for row in results for measure in row.measures.values()}
    return [
        f"# {title}",
        "",
        *markdown_table(head, cells, left=len(words)),
        f"Intervals and p-values by paired bootstrap over {one.get('sentences', 'all')} test sentences"
        f"{search}. Parameters are those without closed heads.",
        "",
        *(f"- `{signature}`" for signature in sorted(signatures)),
        "",
    ]


# ---------------------------------------------------------------- figure


def draw_bleu_heads(
    rows: Sequence[Row],
    path: str | Path,
    *,
    title: str = "",
    search: str = "",
    metric: str = "BLEU",
) -> None:
    """Draw the metric with its 95% interval against open heads for the systems of all runs, with the front of
    base and learned gates.

    Systems that equal another but for rounding (-soft, -removed) and rows that repeat those of a base are
    left out. Where some systems are far below the others, the upper panel is enlarged and the lower one shows
    all. Raises ValueError without a row to draw."""
    rows = [
        row
        for row in rows
        if not row["system"].endswith(("-soft", "-removed"))
        and not (row.get("same_as") or "").startswith("base")
    ]
    if not rows:
        raise no_rows("system of a finished run")
    series, near = system_series(rows), enlarged(rows)
    levels = {
        f"the reference, {row['system']}": row["bleu"]
        for row in rows
        if row["system"] == row.get("reference") and len({row["base"] for row in rows}) == 1
    }
    note = "bars: 95% intervals; line: the front, learned gates or base that no other beats"
    grid = [[Panel(note, series, levels)]]
    if near is not None:
        bare = [replace(each, notes=()) for each in series]
        grid = [
            [Panel(f"enlarged; {note}", series, levels, near)],
            [Panel("all systems", bare, levels)],
        ]
    xlabel = f"open heads, of {max(row['heads_total'] for row in rows)} (fewer to the right)"
    ylabel = ", ".join(filter(None, (metric, "test set", search)))
    draw_scatter(grid, path, title=title, xlabel=xlabel, ylabel=ylabel)


def enlarged(rows: Sequence[Row]) -> tuple[float, float] | None:
    """The limits of the panel in which the systems near the best can be told apart; None where all can."""
    lows, top = column(rows, "bleu_low"), float(column(rows, "bleu_high").max())
    near = lows[lows >= top - ENLARGED * (top - float(np.median(lows)))]
    bottom, room = float(near.min()), 0.06 * (top - float(near.min()))
    return (bottom - room, top + room) if top - float(lows.min()) > ENLARGED * (top - bottom) else None


def system_series(rows: Sequence[Row]) -> list[Series]:
    """The points of every system of every base, then the front of each base. Bases differ in how their
    markers are filled; systems that share a number of heads stand a little beside one another."""
    bases = list(dict.fromkeys(row["base"] for row in rows))
    learned = {row["system"] for row in rows if row["learned"]}
    names = list(dict.fromkeys(row["system"] for row in rows))
    names.sort(key=lambda name: (name not in learned, name not in LOOKS, [*LOOKS, name].index(name)))
    others = [name for name in names if name not in learned and name != "base"]
    apart = 0.011 * max(float(np.ptp(column(rows, "heads_open"))), 4.0)
    kinds = {row["kinds"] for row in rows if row["learned"]}
    points, fronts = [], []
    for base, fill in zip(bases, FILLS * len(bases), strict=False):
        for name in names:
            mine = [row for row in rows if (row["base"], row["system"]) == (base, name)]
            step = others.index(name) if name in others else -1
            shift = apart * (step // 2 + 1) * (-1 if step % 2 else 1) if step >= 0 else 0.0
            notes = [note_of(row, kinds) * (name in learned) for row in mine]
            words = label(name) if len(bases) == 1 else f"{label(name)}, {base}"
            drawn = system_points(mine, words * bool(mine), name, shift)
            points.append(replace(drawn, notes=notes, fill=fill))
        front = [row for row in rows if row["base"] == base and row["on_front"]]
        front.sort(key=lambda row: row["heads_open"])
        line = system_points(front, "", min(learned, default="l0"))
        fronts.append(replace(line, low=(), high=(), joined=True, marked=False))
    return [series for series in (*points, *fronts) if len(series.heads)]


def system_points(rows: Sequence[Row], words: str, name: str, shift: float = 0.0) -> Series:
    values, low, high = (column(rows, f"bleu{end}") for end in ("", "_low", "_high"))
    return Series(words, look_of(name), column(rows, "heads_open") + shift, values, low, high)


def note_of(row: Row, kinds: set[Any]) -> str:
    """Lambda, and the kinds where the runs differ in them; nothing beside gates with a number of heads."""
    if row["lambda"] is None:
        return ""
    part = len(kinds) > 1 and row["kinds"] != "+".join(KINDS)
    return f"λ {row['lambda']:.2g}" + f", {row['kinds']}" * part
