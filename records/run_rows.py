"""Finished runs as rows: every system of every run with its heads, BLEU and intervals, and which of them no
other beats.

A row beats another if it has no more open heads and no lower BLEU, and is better in one of the two. The front
is what no row beats; of equal rows all are on it. Runs are compared within a base: another seed's base is
another model to begin with.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headgates.analysis.metrics import Metric
from headgates.configs.kinds import KIND_GROUPS, KINDS
from headgates.configs.methods import method_of
from headgates.configs.systems import BASES, place
from headgates.models.progress import Report, say
from headgates.records.folder import RunFolder, base_of
from headgates.records.row import ResultRow
from headgates.records.source import drop_batch
from headgates.records.table import Row
from headgates.tasks import task_of

ALL_KINDS = KIND_GROUPS["all"]


class FinishedRun:
    """A finished run: its folder, configuration, result.json, and a row for each of its systems (see
    `run_rows`).

    Raises ValueError if it is not finished, or its files are not a run's."""

    def __init__(self, folder: RunFolder):
        self.folder, self.config = folder, folder.config()
        self.name = folder.path.resolve().name
        folder.check_finished()
        self.result = folder.read_json("result.json")
        try:
            method = method_of(self.config)
            self.gated = method is not None
            self.by_lambda = method is not None and method.controlled_by == "lambda"
            rows = folder.rows()
            self.rows = [self.row(row) for row in rows]
            self.test_sets = {row.evaluation["test_digest"] for row in rows}
            self.searches = {
                str(sorted(drop_batch(row.evaluation.get("search", {})).items())) for row in rows
            }  # decide on translations
            self.base = (self.name, self.config.get("run_hash"))  # name and hash
            if self.config.get("base"):
                self.base = (Path(self.config["base"]).name, self.config.get("base_hash"))
            self.order = (not self.gated, float(self.config["lambda"]), int(self.config["seed"]), self.name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"is not what fit.py writes ({error})"
            raise ValueError(
                f"{folder.path}: config.yaml or result.json {what}; repeat the run with --fresh"
            ) from error

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return task_of(self.config).metrics

    @property
    def system(self) -> str:
        """The run's own system: the base, or the one with its learned gates."""
        return str(self.result.get("system", "base"))

    def row(self, row: ResultRow) -> Row:
        main, system = row.main, row.system
        if main.ci95 is None or main.difference_ci95 is None:
            raise ValueError(f"the row of {system} has no intervals")
        return {
            "run": self.weights_run(system) if row.is_base else self.name,
            "base": None,
            "seed": self.base_seed() if system == "base" else int(self.config["seed"]),
            "lambda": float(self.config["lambda"]) if self.by_lambda and not row.is_base else None,
            "kinds": None
            if row.is_base
            else "+".join(kind for kind in ALL_KINDS if kind in self.config["kinds"]),
            "system": system,
            "heads_open": row.heads_open,
            "heads_total": row.heads_total,
            **{kind: row.heads_by_kind.get(kind, 0) for kind in KINDS},
            "neurons_open": row.neurons_open,
            "neurons_total": row.neurons_total,
            "bleu": main.value,
            "bleu_low": main.ci95[0],
            "bleu_high": main.ci95[1],
            "difference": main.difference,
            "difference_low": main.difference_ci95[0],
            "difference_high": main.difference_ci95[1],
            "p_value": main.p_value,
            "reference": row.reference,
            **{name: measure.value for name, measure in row.measures.items() if name != row.metric},
            "parameters": row.parameters,
            "same_as": row.same_as,
            "learned": int(self.gated and system == self.system),
        }

    def base_seed(self) -> int:
        """The base's own, where it can be read: --base may name one of another seed."""
        try:
            return int(base_of(self.folder).config()["seed"])
        except (ValueError, KeyError):
            return int(self.config["seed"])

    def weights_run(self, system: str) -> str:
        """The name of the run that trained a system without gates: this one, or the one whose weights it
        borrows."""
        systems = self.folder.systems() if (self.folder / "systems.json").is_file() else {}
        weights = Path(systems.get(system, {}).get("weights") or ".")
        return weights.parent.name if weights.parent.name not in ("", "..") else self.name


def finished_runs(folders: Sequence[RunFolder], *, report: Report = say) -> list[FinishedRun]:
    """The finished runs, each once, those with gates first; `report` hears why the others are left out.
    Raises ValueError without a finished run, or where the runs translated different test sets."""
    runs = []
    for folder in {folder.path.resolve(): folder for folder in folders}.values():
        try:
            runs.append(FinishedRun(folder))
        except ValueError as error:
            report(f"left out: {error}")
    if not runs:
        raise ValueError(
            f"none of the {len(folders)} runs given is finished, so there is nothing to compare; finish "
            "one: the command in its command.txt with --resume continues it"
        )
    test_sets = {
        test: sorted(run.name for run in runs if test in run.test_sets)
        for run in runs
        for test in sorted(run.test_sets)
    }
    if len(test_sets) > 1:
        shown = "; ".join(
            f"{test}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            for test, names in sorted(test_sets.items())
        )
        raise ValueError(
            f"BLEU on different test sets cannot be compared; give the runs of one test set ({shown})"
        )
    nothing = dict.fromkeys(row.unlearned for run in runs for row in run.folder.rows())
    for sentence in filter(None, nothing):
        report(f"note: {sentence}")
    if len(set.union(*(run.searches for run in runs))) > 1:
        report("note: the runs translated with different --search settings, which changes BLEU a little")
    return sorted(runs, key=lambda run: run.order)


def run_rows(runs: Sequence[FinishedRun]) -> list[Row]:
    """Every system of every run, by base, lambda, run and system. Columns beside those of the run and its
    measures:

    base: name of the base's run   kinds: those that carry gates, joined with +   enc-self, dec-self, cross:
    open heads of the kind   neurons_open, neurons_total: of feed-forward layers, None where all are open
    difference: BLEU minus that of `reference`   same_as: the system that this one equals   learned: 1 for the
    run's own gates
    on_front: 1 on the front of base and learned gates of its base, else 0   on_front_all: the same among all
    systems"""
    names = base_names(runs)
    by_system: dict[tuple[Any, ...], Row] = {}
    # runs with gates come first: they say how much better the continued base is, the bases themselves have no
    # other
    for run in runs:
        for row in run.rows:  # a base's own rows are repeated in every run that was made from it
            key = row["run"] if row["system"] in BASES else run.folder.path.resolve()
            by_system.setdefault((names[run.base], row["system"], key), row | {"base": names[run.base]})
    rows = sorted(by_system.values(), key=row_order)
    mark_front(rows, "on_front", lambda row: row["learned"] or row["system"] == "base")
    mark_front(rows, "on_front_all", lambda row: True)
    return rows


def base_names(runs: Sequence[FinishedRun]) -> dict[tuple[str, Any], str]:
    """The bases' names; with the hash where different bases have one name, as runs of different folders
    may."""
    bases = {run.base for run in runs}
    names = [name for name, _ in bases]
    return {base: base[0] if names.count(base[0]) == 1 else f"{base[0]}-{str(base[1])[:6]}" for base in bases}


def row_order(row: Row) -> tuple[Any, ...]:
    """Base, then lambda, seed and run, then the system in the order of `--systems`; the base's own rows
    first."""
    gated = row["kinds"] is not None
    return (
        row["base"],
        gated,
        row["lambda"] or 0.0,
        row["seed"],
        row["run"] if gated else "",
        place(row["system"]),
        row["system"],
    )


def mark_front(rows: Sequence[Row], column: str, competes: Callable[[Row], bool]) -> None:
    """Write 1 into `column` of the rows on the front of all that compete within their base, else 0."""
    for row in rows:
        row[column] = 0
    for base in {row["base"] for row in rows}:
        rivals = [row for row in rows if row["base"] == base and competes(row)]
        for i in front([(row["heads_open"], row["bleu"]) for row in rivals]):
            rivals[i][column] = 1


def front(points: Sequence[tuple[int, float]]) -> list[int]:
    """Indices, in order, of the (heads, BLEU) that no other point beats. Numbers are finite."""
    return [
        i
        for i, (heads, bleu) in enumerate(points)
        if not any(h <= heads and b >= bleu and (h, b) != (heads, bleu) for h, b in points)
    ]
