"""BLEU against open heads over all runs of a sweep: one table, the runs that no other beats, and their figure.

A point beats another if it has no more open heads and no lower BLEU, and is better in one of the two. The front is what nothing beats; of
equal points all are on it. Runs are compared within a base: another seed's base is another model to begin with.
"""

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from configs.schema import KINDS
from configs.systems import all_systems
from models.progress import Report, say
from runfolder.folder import RunFolder, dense_run
from runfolder.provenance import device_name, provenance
from runfolder.table import Row, write_table
from sweeps.figure import draw_pareto

BASES = ("base", "base-continued")  # systems without gates: one row for each base, however many runs were made from it
LEARNED = ("l0", "base")  # what a front of learned gates is made of
UNFINISHED = "the command in its command.txt with --resume continues it"


def front(points: Sequence[tuple[int, float]]) -> list[int]:
    """Indices, in order, of the (heads, BLEU) that no other point beats. O(n log n). Numbers are finite."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    found: list[int] = []
    best = float("-inf")  # BLEU with fewer heads
    for _, group in groupby(order, key=lambda i: points[i][0]):
        alike = list(group)
        top = points[alike[0]][1]
        if top > best:
            found += [i for i in alike if points[i][1] == top]
            best = top
    return sorted(found)


def rows(folders: Sequence[RunFolder], *, report: Report = say) -> list[Row]:
    """Every system of every finished run, by base, lambda, run and system; runs that are not finished or cannot be read are left out with a
    line to `report`. Columns beside those of the run and its measures:

    base: name of the base's run   kinds: those that carry gates, joined with +   enc-self, dec-self, cross: open heads of the kind
    difference: BLEU minus that of `reference`   same_as: the system that this one equals   on_front: 1 on the front of l0 and base of its
    base, else 0   on_front_all: the same among all systems

    Raises ValueError without a finished run, or if the runs translated different test sets."""
    runs = finished(folders, report)
    if not runs:
        raise ValueError(f"none of the {len(folders)} runs given is finished, so there is nothing to compare; finish one: {UNFINISHED}")
    one_test_set(runs, report)
    labels = base_labels(runs)
    found: dict[tuple[Any, ...], Row] = {}
    # bases last: a run on them says how much better the continued one is, they themselves know of no other
    for run in sorted(runs, key=lambda run: (run.config.get("gate", "none") == "none", run.order)):
        for row in run.rows:  # a base's own rows are repeated in every run that was made from it
            key = row["run"] if row["system"] in BASES else run.folder.path.resolve()
            found.setdefault((labels[run.base], row["system"], key), row | {"base": labels[run.base]})
    table = sorted(found.values(), key=place)
    mark(table, "on_front", LEARNED)
    mark(table, "on_front_all", all_systems())
    return table


def report(folders: Sequence[RunFolder], out: Path, *, title: str, report: Report = say) -> list[Path]:
    """Write pareto.csv, pareto.png, pareto.svg and pareto.json (what made the table, and each run) into `out`; their paths. Raises
    ValueError as `rows` does, before anything is written."""
    table = rows(folders, report=report)
    out.mkdir(parents=True, exist_ok=True)
    write_table(RunFolder(out), "pareto.csv", table)
    with TemporaryDirectory(dir=out, prefix=".pareto-") as drafts:  # a crash leaves the old figure whole
        draw_pareto(table, Path(drafts) / "pareto", title=title)
        for name in ("pareto.png", "pareto.svg"):
            os.replace(Path(drafts) / name, out / name)
    names = {row["run"] for row in table} | {row["base"] for row in table}
    made = {name: made_by(folder) for folder in folders if (name := folder.path.resolve().name) in names}
    facts = provenance(device_name(), "none", 0)  # a table has no precision and no seed of its own
    own = {name: facts[name] for name in ("command", "commit", "device", "versions", "date")}
    RunFolder(out).write_json("pareto.json", {"title": title, **own, "runs": made})
    return [out / name for name in ("pareto.csv", "pareto.png", "pareto.svg", "pareto.json")]


def made_by(folder: RunFolder) -> dict[str, Any]:
    """Command, commit, seed, machine and versions of a run, as its result.json has them."""
    result = folder.result() or {}
    return {name: result.get(name) for name in ("command", "commit", "seed", "device", "precision", "threads", "versions", "date")}


# ---------------------------------------------------------------- runs


class Run:
    """A finished run as rows. Raises ValueError if it is not finished, or its files are not a run's."""

    def __init__(self, folder: RunFolder):
        self.folder, self.config = folder, folder.config()
        self.name = folder.path.resolve().name
        result = folder.result()
        if not isinstance(result, dict) or not result.get("finished"):
            raise ValueError(f"{folder.path} is not finished; {UNFINISHED}")
        try:
            self.rows = [self.row(row) for row in result["rows"]]
            self.tests = {row["evaluation"]["test_digest"] for row in result["rows"]}
            self.searches = {str(searched(row["evaluation"]["search"])) for row in result["rows"]}
            self.base = (self.name, self.config.get("run_hash"))  # name and hash
            if self.config.get("base"):
                self.base = (Path(self.config["base"]).name, self.config.get("base_hash"))
            self.order = (float(self.config["lambda"]), int(self.config["seed"]), self.name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"is not what fit.py writes ({error})"
            raise ValueError(f"{folder.path}: config.yaml or result.json {what}; repeat the run with --fresh") from error

    def row(self, row: dict[str, Any]) -> Row:
        system, gated = row["system"], row["system"] not in BASES
        low, high = row["bleu_ci95"]
        difference_low, difference_high = row["bleu_difference_ci95"]
        return {
            "run": self.name if gated else self.made_by(system),
            "base": None,
            "seed": self.base_seed() if system == "base" else int(self.config["seed"]),
            "lambda": float(self.config["lambda"]) if gated else None,
            "kinds": "+".join(kind for kind in KINDS if kind in self.config["kinds"]) if gated else None,
            "system": system,
            "heads_open": int(row["heads_open"]),
            "heads_total": int(row["heads_total"]),
            **{kind: int(row["heads_by_kind"].get(kind, 0)) for kind in KINDS},
            "bleu": float(row["bleu"]),
            "bleu_low": float(low),
            "bleu_high": float(high),
            "difference": float(row["bleu_difference"]),
            "difference_low": float(difference_low),
            "difference_high": float(difference_high),
            "p_value": float(row["p_value_vs_reference"]),
            "reference": row["reference"],
            "chrf": float(row["chrf"]),
            "parameters": int(row["parameters"]),
            "same_as": row.get("same_as"),
        }

    def base_seed(self) -> int:
        """The base's own, where it can be read: --base may name one of another seed."""
        try:
            return int(dense_run(self.folder).config()["seed"])
        except (ValueError, KeyError):
            return int(self.config["seed"])

    def made_by(self, system: str) -> str:
        """The name of the run that trained a system without gates: this one, or the one whose weights it borrows."""
        systems = self.folder.systems() if (self.folder / "systems.json").is_file() else {}
        weights = Path(systems.get(system, {}).get("weights") or ".")
        return weights.parent.name if weights.parent.name not in ("", "..") else self.name


def searched(search: dict[str, Any]) -> list[tuple[str, Any]]:
    """What of the search decides on a translation, batches aside."""
    return sorted((name, value) for name, value in search.items() if name != "batch_tokens")


def finished(folders: Sequence[RunFolder], report: Report) -> list[Run]:
    """The finished runs, each once; of the others it is said why they are left out."""
    runs = []
    for folder in {folder.path.resolve(): folder for folder in folders}.values():
        try:
            runs.append(Run(folder))
        except ValueError as error:
            report(f"left out: {error}")
    return runs


def one_test_set(runs: Sequence[Run], report: Report) -> None:
    """Raises ValueError where runs translated different test sets; says where they searched differently."""
    by_test = {test: sorted(run.name for run in runs if test in run.tests) for test in sorted(set.union(*(run.tests for run in runs)))}
    if len(by_test) > 1:
        shown = "; ".join(f"{test}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" for test, names in by_test.items())
        raise ValueError(f"BLEU on different test sets cannot be compared; give the runs of one test set ({shown})")
    if len(set.union(*(run.searches for run in runs))) > 1:
        report("note: the runs translated with different --search settings, which changes BLEU a little")


def base_labels(runs: Sequence[Run]) -> dict[tuple[str, Any], str]:
    """The bases' names; with the hash where different bases have one name, as runs of different folders may."""
    bases = {run.base for run in runs}
    names = [name for name, _ in bases]
    return {base: base[0] if names.count(base[0]) == 1 else f"{base[0]}-{str(base[1])[:6]}" for base in bases}


# ---------------------------------------------------------------- rows


def place(row: Row) -> tuple[Any, ...]:
    """Base, then lambda, seed and run, then the system in the order of `--systems`; the base's own rows first."""
    system = all_systems().index(row["system"]) if row["system"] in all_systems() else len(all_systems())
    known = row["lambda"] is not None
    return (row["base"], known, row["lambda"] if known else 0.0, row["seed"], row["run"] if known else "", system, row["system"])


def mark(table: Sequence[Row], column: str, systems: Sequence[str]) -> None:
    """Write 1 into `column` of the rows on the front of these systems of their base, else 0."""
    for row in table:
        row[column] = 0
    for base in {row["base"] for row in table}:
        mine = [row for row in table if row["base"] == base and row["system"] in systems]
        for i in front([(row["heads_open"], row["bleu"]) for row in mine]):
            mine[i][column] = 1
