"""Write BLEU against open heads for finished runs: a table as CSV and Markdown, a figure, and how each run
was made."""

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headgates.configs.schema import KINDS
from headgates.models.progress import Report, say
from headgates.report.bleu_heads_figure import HeadsPanel, draw_bleu_heads
from headgates.workbench.folder import RunFolder
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.run_rows import FinishedRun, finished_runs, run_rows
from headgates.workbench.table import Row, markdown_table, write_table

WITHIN = 1.0  # the loss of BLEU against the reference that `auto` accepts for the run whose heads are shown
FACTS = (
    "command",
    "commit",
    "seed",
    "device",
    "precision",
    "threads",
    "versions",
    "date",
)  # of a run, as its result.json has them
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])(?:/|[A-Za-z]:\\)\w")


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

    heads_of: the lambda of the run whose open heads are drawn beside the figure; `auto` takes the run with
    the fewest open heads within 1 BLEU of the reference. copies: whether each run's result.json is copied to
    NAME/RUN.json. Raises ValueError, before anything is written, if no run is finished, for runs on different
    test sets, for a lambda that no run has, and for a copy that would name a path of this machine."""
    runs = finished_runs(folders, report=report)
    rows = run_rows(runs)
    panel = None if heads_of is None else heads_panel(runs, rows, heads_of)
    copied = {run.name: copy_of_result(run) for run in runs} if copies else {}
    facts = {
        run.name: {fact: run.result.get(fact) for fact in FACTS}
        for run in sorted(runs, key=lambda run: run.name)
    }
    folder = RunFolder(out)
    write_table(folder, f"{name}.csv", rows)
    folder.write_text(f"{name}.md", "\n".join(markdown(rows, runs, facts, title)))
    with TemporaryDirectory(dir=out, prefix=".draft-") as drafts:  # a crash leaves the old figure whole
        draw_bleu_heads(rows, Path(drafts) / name, title=title, panel=panel)
        for end in ("png", "svg"):
            os.replace(Path(drafts) / f"{name}.{end}", out / f"{name}.{end}")
    table_facts = provenance(device_name(), "none", 0)  # a table has no precision and no seed
    made_by = {fact: table_facts[fact] for fact in ("command", "commit", "device", "versions", "date")}
    folder.write_json(f"{name}.json", {"title": title, **made_by, "runs": facts})
    for run_name, text in copied.items():
        folder.write_text(f"{name}/{run_name}.json", text)
    kinds = {"csv": "table", "md": "table", "png": "figure", "svg": "figure", "json": "made by"}
    for end, kind in kinds.items():
        report(f"{kind}: {out / f'{name}.{end}'}")
    return [out / f"{name}.{end}" for end in kinds]


def heads_panel(runs: Sequence[FinishedRun], rows: Sequence[Row], heads_of: str) -> HeadsPanel:
    """Return the open heads of the first run with learned gates of this lambda. Raises ValueError if there is
    none."""
    learned = [row for row in rows if row["learned"]]
    if not learned:
        raise ValueError(
            "--map shows the open heads of a run with learned gates, and none of the runs has them"
        )
    if heads_of == "auto":
        near = [row for row in learned if row["difference"] >= -WITHIN]
        row = (
            min(near, key=lambda row: row["heads_open"])
            if near
            else max(learned, key=lambda row: row["bleu"])
        )
    else:
        same = [row for row in learned if row["lambda"] == float(heads_of)]
        if not same:
            lambdas = ", ".join(
                f"{value:g}"
                for value in sorted({row["lambda"] for row in learned if row["lambda"] is not None})
            )
            raise ValueError(f"no run has lambda {heads_of}; --map takes auto or one of {lambdas}")
        row = same[0]
    run = next(run for run in runs if run.name == row["run"])
    price = "" if row["lambda"] is None else f"λ {row['lambda']:g}: "
    words = f"{price}the {row['heads_open']} open heads (full) of {row['heads_total']}"
    return HeadsPanel(words, run.open_heads())


def copy_of_result(run: FinishedRun) -> str:
    """Return the text of the run's result.json. Raises ValueError if it names a path of this machine."""
    for word in [*shlex.split(run.result["command"]), run.result["data"].get("description", "")]:
        if ABSOLUTE_PATH.search(word):
            raise ValueError(
                f"result.json of {run.name} names a path of this machine ({word!r}); run it with relative paths"
            )
    return json.dumps(run.result, indent=1, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- Markdown


def markdown(
    rows: Sequence[Row], runs: Sequence[FinishedRun], facts: dict[str, dict[str, Any]], title: str
) -> list[str]:
    """Return the lines of NAME.md: the rows, how BLEU was measured, and how each run was made."""
    several = len({row["base"] for row in rows}) > 1
    head = [
        "system",
        *["base"] * several,
        "λ",
        "open heads",
        *KINDS,
        "BLEU",
        "95%",
        "chrF",
        "BLEU against the reference",
        "95%",
        "p",
    ]
    lines = [
        f"# {title}",
        "",
        *markdown_table([*head, "parameters"], (cells(row, several) for row in rows), left=1 + several),
    ]
    first = runs[0].result["rows"][0]
    search, sentences = first["evaluation"]["search"], first["evaluation"].get("sentences")
    description = runs[0].result.get("data", {}).get("description")
    about = [f"{sentences:,} sentences"] if sentences else []
    about += [
        f"{name.replace('_', ' ')} {search[name]:g}" for name in ("beam", "length_penalty") if name in search
    ]
    note = "Intervals and p-values by paired bootstrap. Parameters are those of the whole model, closed heads included."
    lines += [". ".join(text for text in (description, ", ".join(about), note) if text), ""]
    for measure, key in (("BLEU", "bleu_signature"), ("chrF", "chrf_signature")):
        signatures = {row.get(key) for run in runs for row in run.result["rows"]} - {None}
        lines += [f"- {measure} `{signature}`" for signature in sorted(signatures)]
    made = ([run, *(fact_cell(name, fact[name]) for name in FACTS)] for run, fact in facts.items())
    return [*lines, "", *markdown_table(["run", *FACTS], made, left=1 + len(FACTS))]


def cells(row: Row, several_bases: bool) -> list[str]:
    heads = [f"{row['heads_open']}/{row['heads_total']}", *(str(row[kind]) for kind in KINDS)]
    texts = [
        row["system"],
        *[row["base"]] * several_bases,
        "" if row["lambda"] is None else f"{row['lambda']:g}",
        *heads,
    ]
    texts += [f"{row['bleu']:.2f}", f"{row['bleu_low']:.1f} to {row['bleu_high']:.1f}", f"{row['chrf']:.2f}"]
    if row["system"] == row["reference"]:
        texts += ["reference", "", ""]
    else:
        texts += [
            f"{row['difference']:+.2f}",
            f"{row['difference_low']:+.2f} to {row['difference_high']:+.2f}",
        ]
        texts.append("" if row["p_value"] is None else f"{row['p_value']:.3f}")
    return [*texts, f"{row['parameters']:,}"]


def fact_cell(name: str, fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{package} {version}" for package, version in fact.items())
    return f"`{fact}`" if name == "command" and fact else "" if fact is None else str(fact)
