"""Write BLEU against open heads for finished runs: a table as CSV and Markdown, a figure, and how each run
was made."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headgates.configs.schema import KINDS
from headgates.models.progress import Report, say
from headgates.report.drawing import KIND_WORDS, Row, column, no_rows, number
from headgates.report.palette import KIND_LOOKS, LOOKS, look_of
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.table import interval_text, p_text
from headgates.workbench.folder import RunFolder
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.run_rows import FinishedRun, finished_runs, run_rows
from headgates.workbench.table import markdown_table, write_table

Heads = Mapping[tuple[str, int], Sequence[bool]]  # (kind, layer) -> whether each head is open

WITHIN = 1.0  # the loss of BLEU against the reference that `auto` accepts for the run whose heads are shown
PROVENANCE = ("command", "commit", "seed", "device", "precision", "threads", "versions", "date")  # of a run
MADE_BY = ("command", "commit", "device", "versions", "date")  # of a table, without precision and seed
ENDS = {"csv": "table", "md": "table", "png": "figure", "svg": "figure", "json": "made by"}
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])(?:/|[A-Za-z]:\\)\w")
FILLS = ("full", "none", "left", "right", "top", "bottom")  # of the markers of each base, in turn
ENLARGED = 3  # the lower systems get a panel of their own where they are this many times as far down


def write_bleu_heads(
    folders: Sequence[RunFolder],
    out: Path,
    *,
    title: str,
    name: str = "pareto",
    heads_of: str | None = None,
    copies: bool = False,
    report: Report = say,
) -> list[Path]:
    """Write NAME.csv, .md, .png, .svg and .json (how the table and each run were made) into `out`; return
    their paths.

    heads_of: the lambda of the run whose open heads are shown beside the figure; `auto` takes the run with
    the fewest open heads within 1 BLEU of the reference. copies: whether each run's result.json is copied to
    NAME/RUN.json. Raises ValueError, before anything is written, if no run is finished, for runs on different
    test sets, for a lambda that no run has, and for a copy that would name a path of this machine."""
    runs = finished_runs(folders, report=report)
    rows = run_rows(runs)
    shown = None if heads_of is None else heads_shown(runs, rows, heads_of)
    copied = {run.name: copy_of_result(run) for run in runs} if copies else {}
    made = made_of({run.name: run.result for run in runs})
    folder = RunFolder(out)
    write_table(folder, f"{name}.csv", rows)
    folder.write_text(f"{name}.md", "\n".join(markdown(rows, runs, made, title)))
    with TemporaryDirectory(dir=out, prefix=".draft-") as drafts:  # a crash leaves the old figure whole
        draw_bleu_heads(rows, Path(drafts) / name, title=title, shown=shown)
        move_figure(Path(drafts) / name, out)
    folder.write_json(f"{name}.json", {"title": title, **made_by(), "runs": made})
    for run_name, text in copied.items():
        folder.write_text(f"{name}/{run_name}.json", text)
    for end, kind in ENDS.items():
        report(f"{kind}: {out / f'{name}.{end}'}")
    return [out / f"{name}.{end}" for end in ENDS]


def move_figure(draft: Path, folder: Path) -> None:
    for end in ("png", "svg"):
        os.replace(f"{draft}.{end}", folder / f"{draft.name}.{end}")


def made_by() -> dict[str, Any]:
    found = provenance(device_name(), "none", 0)
    return {name: found[name] for name in MADE_BY}


def made_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """How each run was made, from its result.json."""
    return {run: {name: result.get(name) for name in PROVENANCE} for run, result in sorted(results.items())}


def learned_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if number(row["learned"])]


def heads_shown(runs: Sequence[FinishedRun], rows: Sequence[Row], heads_of: str) -> tuple[str, Heads]:
    """The title and the open heads of the first run with learned gates of this lambda. Raises ValueError if
    there is none."""
    learned = learned_rows(rows)
    if not learned:
        raise ValueError(
            "--map shows the open heads of a run with learned gates, and none of the runs has them"
        )
    if heads_of == "auto":
        near = [row for row in learned if row["difference"] >= -WITHIN]
        best = max(learned, key=lambda row: row["bleu"])
        row = min(near, key=lambda row: row["heads_open"]) if near else best
    else:
        same = [row for row in learned if row["lambda"] == float(heads_of)]
        if not same:
            known = sorted({row["lambda"] for row in learned if row["lambda"] is not None})
            lambdas = ", ".join(f"{value:g}" for value in known)
            raise ValueError(f"no run has lambda {heads_of}; --map takes auto or one of {lambdas}")
        row = same[0]
    run = next(run for run in runs if run.name == row["run"])
    price = "" if row["lambda"] is None else f"λ {row['lambda']:g}: "
    return f"{price}the {row['heads_open']} open heads (full) of {row['heads_total']}", run.open_heads()


def copy_of_result(run: FinishedRun) -> str:
    """The text of the run's result.json. Raises ValueError if it names a path of this machine."""
    for word in [*shlex.split(run.result["command"]), run.result["data"].get("description", "")]:
        if ABSOLUTE_PATH.search(word):
            raise ValueError(
                f"result.json of {run.name} names a path of this machine ({word!r}); "
                "run it with relative paths"
            )
    return json.dumps(run.result, indent=1, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- Markdown


def markdown(
    rows: Sequence[Row], runs: Sequence[FinishedRun], made: Mapping[str, Mapping[str, Any]], title: str
) -> list[str]:
    """The lines of NAME.md: the rows, how BLEU was measured, and how each run was made. A column of bases
    stands there where there are several, one of lambda where a run has one."""
    bases = ["base"] * (len({row["base"] for row in rows}) > 1)
    lambdas = ["lambda"] * any(row["lambda"] is not None for row in rows)
    head = ["system", *bases, *["λ"] * len(lambdas), "open heads", *KINDS, "BLEU", "95%", "chrF"]
    head += ["BLEU against the reference", "95%", "p", "parameters"]
    cells = (
        [*(shown(row[name]) for name in ("system", *bases, *lambdas)), *number_cells(row)] for row in rows
    )
    lines = [f"# {title}", "", *markdown_table(head, cells, left=1 + len(bases))]
    first = runs[0].result["rows"][0]
    search, sentences = first["evaluation"]["search"], first["evaluation"].get("sentences")
    about = [f"{sentences:,} sentences"] if sentences else []
    about += [
        f"{name.replace('_', ' ')} {search[name]:g}" for name in ("beam", "length_penalty") if name in search
    ]
    note = "Intervals and p-values by paired bootstrap. Parameters are those of the unpruned model."
    texts = (runs[0].result.get("data", {}).get("description"), ", ".join(about), note)
    lines += [". ".join(text for text in texts if text), ""]
    for measure, key in (("BLEU", "bleu_signature"), ("chrF", "chrf_signature")):
        signatures = {row.get(key) for run in runs for row in run.result["rows"]} - {None}
        lines += [f"- {measure} `{signature}`" for signature in sorted(signatures)]
    return [*lines, "", *made_table(made)]


def made_table(made: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A row for each run: what made it."""
    rows = ([run, *(fact_cell(name, facts[name]) for name in PROVENANCE)] for run, facts in made.items())
    return markdown_table(["run", *PROVENANCE], rows, left=1 + len(PROVENANCE))


def shown(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def number_cells(row: Row) -> list[str]:
    compared = ["reference", "", ""]
    if row["system"] != row["reference"]:
        interval = interval_text((row["difference_low"], row["difference_high"]))
        compared = [f"{row['difference']:+.2f}", interval, p_text(row["p_value"])]
    heads = [f"{row['heads_open']}/{row['heads_total']}", *(str(row[kind]) for kind in KINDS)]
    interval = interval_text((row["bleu_low"], row["bleu_high"]), ".1f")
    return [*heads, f"{row['bleu']:.2f}", interval, f"{row['chrf']:.2f}", *compared, f"{row['parameters']:,}"]


def fact_cell(name: str, fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{package} {version}" for package, version in fact.items())
    return f"`{fact}`" if name == "command" and fact else shown(fact)


# ---------------------------------------------------------------- figure


def draw_bleu_heads(
    rows: Sequence[Row], path: str | Path, *, title: str = "", shown: tuple[str, Heads] | None = None
) -> None:
    """Draw BLEU with its 95% interval against open heads for the systems of all runs, with the front of base
    and learned gates; `shown` puts a panel with the open heads of one run beside it.

    Systems that equal another but for rounding (-soft, -removed) and rows that repeat those of a base are
    left out. Where some systems are far below the others, the upper panel is enlarged and the lower one shows
    all. Raises ValueError without a row to draw."""
    rows = [
        row
        for row in rows
        if not str(row["system"]).endswith(("-soft", "-removed"))
        and not str(row.get("same_as") or "").startswith("base")
    ]
    if not rows:
        raise no_rows("system of a finished run")
    series = system_series(rows)
    total = sorted({int(number(row["heads_total"])) for row in rows})[-1]
    note = "bars: 95% intervals; line: the front, learned gates or base that no other beats"
    near = enlarged(rows)
    grid = [[Panel(note, series, reference_of(rows))]]
    if near is not None:
        bare = [replace(each, notes=()) for each in series]
        above = replace(grid[0][0], title=f"enlarged; {note}", limits=near)
        grid = [[above], [Panel("all systems", bare, reference_of(rows))]]
    draw_scatter(
        grid,
        path,
        title=title,
        xlabel=f"open heads, of {total} (fewer to the right)",
        ylabel="BLEU, test set",
        beside=None if shown is None else lambda axes: draw_heads(axes, *shown),
    )


def reference_of(rows: Sequence[Row]) -> dict[str, float]:
    """The level of the reference, where all runs have one base."""
    references = [row for row in rows if row["system"] == row.get("reference")]
    one = len({row["base"] for row in rows}) == 1
    return {f"the reference, {row['system']}": number(row["bleu"]) for row in references if one}


def enlarged(rows: Sequence[Row]) -> tuple[float, float] | None:
    """The limits of the panel in which the systems near the best can be told apart; None where all can."""
    lows, top = column(rows, "bleu_low"), float(column(rows, "bleu_high").max())
    near = lows[lows >= top - ENLARGED * (top - float(np.median(lows)))]
    bottom, room = float(near.min()), 0.06 * (top - float(near.min()))
    return (bottom - room, top + room) if top - float(lows.min()) > ENLARGED * (top - bottom) else None


def system_series(rows: Sequence[Row]) -> list[Series]:
    """The points of every system of every base, then the front of each base. Bases differ in how their
    markers are filled; systems that share a number of heads stand a little beside one another."""
    bases = list(dict.fromkeys(str(row["base"]) for row in rows))
    learned = {str(row["system"]): None for row in learned_rows(rows)}
    names = list(dict.fromkeys(str(row["system"]) for row in rows))
    names.sort(key=lambda name: (name not in learned, name not in LOOKS, [*LOOKS, name].index(name)))
    others = [name for name in names if name not in learned and name != "base"]
    apart = 0.011 * max(float(np.ptp(column(rows, "heads_open"))), 4.0)
    kinds = {row.get("kinds") for row in learned_rows(rows)}
    found = []
    for base, fill in zip(bases, FILLS * len(bases), strict=False):
        for name in names:
            mine = [row for row in rows if (str(row["base"]), str(row["system"])) == (base, name)]
            step = others.index(name) if name in others else -1
            shift = apart * (step // 2 + 1) * (-1 if step % 2 else 1) if step >= 0 else 0.0
            notes = [note_of(row, kinds) for row in mine] if name in learned else ()
            label = name if len(bases) == 1 else f"{name}, {base}"
            x, y = column(mine, "heads_open") + shift, column(mine, "bleu")
            low, high = column(mine, "bleu_low"), column(mine, "bleu_high")
            found.append(Series(label * bool(mine), look_of(name), x, y, low, high, notes=notes, fill=fill))
    look = look_of(next(iter(learned), "l0"))
    for base in bases:
        mine = [row for row in rows if str(row["base"]) == base and number(row["on_front"])]
        mine.sort(key=lambda row: number(row["heads_open"]))
        found.append(
            Series("", look, column(mine, "heads_open"), column(mine, "bleu"), joined=True, marked=False)
        )
    return [series for series in found if len(series.heads)]


def note_of(row: Row, kinds: set[Any]) -> str:
    """Lambda, and the kinds where the runs differ in them; nothing beside gates with a number of heads."""
    if row["lambda"] in ("", None):
        return ""
    part = len(kinds) > 1 and row.get("kinds") != "+".join(KINDS)
    return f"λ {number(row['lambda']):.2g}" + (f", {row['kinds']}" if part else "")


def draw_heads(axes: Axes, title: str, sites: Heads) -> None:
    """Draw a row for each layer, grouped by kind, with a mark for each head: full if it is open, hollow if it
    is closed."""
    widest = max(map(len, sites.values()))
    y, ticks = 0.0, []
    for kind, look in KIND_LOOKS.items():
        layers = {layer: heads for (of, layer), heads in sorted(sites.items()) if of == kind}
        colour = look.colour.light
        counts = f"{sum(map(sum, layers.values()))} of {sum(map(len, layers.values()))}"
        words = KIND_WORDS[kind].removesuffix("-attention").removesuffix(" attention")
        if layers:
            middle = y + len(layers) / 2 - 0.5
            axes.text(widest - 0.1, middle, f"{words}\n{counts}", color=colour, va="center", fontsize=11)
        for layer, heads in layers.items():
            faces = [colour if is_open else "none" for is_open in heads]
            axes.scatter(range(len(heads)), [y] * len(heads), s=95, c=faces, edgecolor=colour, linewidth=1.4)
            ticks.append((y, f"layer {layer}"))
            y += 1
        y += 0.55 * bool(layers)
    axes.set(
        xlim=(-0.7, widest + 2.6), ylim=(y - 0.6, -0.8), xticks=range(widest), xlabel="head", title=title
    )
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
