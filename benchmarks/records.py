"""What results/ holds of learned gates and of what heads do: points of a base, leads of one point over
another, and roles.

A point is a model whose heads were closed, learned or not, trained on or not, with its difference from the
reference of its training.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from headgates.configs.methods import METHODS
from headgates.configs.scores import FINETUNED
from headgates.report.terminal import interval_text
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import Interval, ResultRow
from headgates.workbench.table import Row, read_table


@dataclass(frozen=True)
class Point:
    """A model with `heads` of `total` heads open, the mean over `seeds`.

    difference: from its reference, with the middle 95% of the paired bootstrap. by_kind, kinds: kind -> heads
    open, and heads there are. by_site: site -> heads open, where the record says so. epochs: of training
    after the choice, or of the
    whole stage of learned gates."""

    method: str
    learned: bool
    epochs: int
    heads: float
    total: int
    value: float
    difference: float
    interval: Interval
    seeds: int = 1
    by_kind: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    by_site: Mapping[str, float] | None = None

    @property
    def closes(self) -> bool:
        return self.heads < self.total

    @property
    def loss_text(self) -> str:
        """-0.60 (-1.49 to +0.25), with the number of seeds where there are several."""
        seeds = f"; {self.seeds} seeds" if self.seeds > 1 else ""
        return f"{self.difference:+.2f} ({interval_text(self.interval)}{seeds})"

    @property
    def name(self) -> str:
        trained = f" +{self.epochs} epoch{'s' * (self.epochs > 1)}" if self.epochs else ", not trained"
        return f"{self.method}{trained}"


@dataclass(frozen=True)
class Lead:
    """One point's score minus another's. paired: the interval is that of the paired bootstrap; otherwise it
    is made of the two points' own, as if they were independent, which is too wide: both have the same lines
    and the same reference."""

    value: float
    interval: Interval
    paired: bool

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({interval_text(self.interval)}{'' if self.paired else ', unpaired'})"


LeadKey = tuple[str, str, int, float]  # method, the other, epochs, heads


@dataclass(frozen=True)
class Roles:
    """The tables of analyze.py on a base. shares: site -> each head's part of its layer's relevance."""

    roles: Sequence[Row]
    nearest: Sequence[Row]
    correlations: Sequence[Row]
    syntax: Sequence[Row]
    survival: Sequence[Row]
    shares: Mapping[str, Sequence[float]]


def lead_of(point: Point, other: Point, recorded: Mapping[LeadKey, Lead]) -> Lead:
    """The recorded lead of a point over another, or one made of their own intervals."""
    key, turned = (
        (point.method, other.method, point.epochs, point.heads),
        (other.method, point.method, point.epochs, point.heads),
    )
    if point.epochs == other.epochs and key in recorded:
        return recorded[key]
    if point.epochs == other.epochs and turned in recorded:
        lead = recorded[turned]
        return Lead(-lead.value, (-lead.interval[1], -lead.interval[0]), lead.paired)
    value = point.difference - other.difference
    half = sqrt(sum(((one.interval[1] - one.interval[0]) / 2) ** 2 for one in (point, other)))
    return Lead(value, (value - half, value + half), paired=False)


# ---------------------------------------------------------------- compare.py


def read_comparison(path: Path) -> tuple[list[Point], dict[LeadKey, Lead]]:
    """The points of a recorded comparison, and its leads; none where there is no such folder. Raises
    ValueError where a file is broken."""
    folder = RunFolder(path)
    if not (folder / "compare.json").is_file():
        return [], {}
    content, rows = folder.read_json("compare.json"), read_table(folder, "compare.csv")
    kinds = {kind: next(row[kind] for row in rows if row["method"] == "base") for kind in content["kinds"]}
    total = next(row["heads_total"] for row in rows)
    by_kind: dict[tuple[str, int, float], list[Row]] = defaultdict(list)
    for same in grouped(rows):
        heads = sum(row["heads_open"] for row in same) / len(same)
        by_kind[label(same[0]), same[0]["epochs"], heads] = same
    points = []
    for group in content["groups"]:
        if group["difference"] is None:
            continue
        same = by_kind[group["method"], group["epochs"], group["heads"]]
        points.append(
            Point(
                **{
                    name: group[name]
                    for name in ("method", "learned", "epochs", "heads", "value", "difference", "seeds")
                },
                interval=(group["difference_low"], group["difference_high"]),
                total=total,
                by_kind={kind: sum(row[kind] for row in same) / len(same) for kind in kinds},
                kinds=kinds,
            )
        )
    leads = {
        (row["method"], row["against"], row["epochs"], row["heads"]): Lead(
            row["difference"], (row["difference_low"], row["difference_high"]), paired=True
        )
        for row in content.get("leads", [])
    }
    return points, leads


def label(row: Row) -> str:
    """What compare.json calls the method of a row of compare.csv."""
    return row["method"] if row["closing"] == "zero" else f"{row['method']}-{row['closing']}"


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of compare.csv that differ in their seed alone."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[label(row), row["epochs"], row["heads_asked"], row["lambda"]].append(row)
    return list(found.values())


# ---------------------------------------------------------------- fit.py


def read_results(paths: Iterable[Path]) -> tuple[list[Point], list[tuple[Point, Point]]]:
    """The points of copies of result.json, and of each of learned gates its row from random weights, where
    the run has one."""
    points, scratch = [], []
    for path in sorted(paths):
        folder = RunFolder(path.parent)
        content = folder.read_json(path.name)
        rows = {row.system: row for row in map(ResultRow.from_json, content["rows"])}
        own = content.get("system", "base")
        if own not in METHODS:
            continue
        total = rows["base"].heads_by_kind
        epochs = (rows[own].stage or {}).get("epochs", 0)
        found = {
            name: point_of(row, total, epochs)
            for name, row in rows.items()
            if row.main.difference_ci95 and not row.is_base
        }
        points += [point for name, point in found.items() if name == own or not made_of_gates(name)]
        if own in found and METHODS[own].scratch in found:
            scratch.append((found[own], found[METHODS[own].scratch]))
    return points, scratch


def made_of_gates(system: str) -> bool:
    """Whether a row is another form of learned gates: as trained, removed, or from random weights."""
    return any(system in (method.soft, method.removed, method.scratch) for method in METHODS.values())


def point_of(row: ResultRow, kinds: Mapping[str, int], epochs: int) -> Point:
    """A row of result.json. epochs: of the run's gates, which what was trained beside them had too."""
    assert row.main.difference is not None
    assert row.main.difference_ci95 is not None
    return Point(
        method=row.system.removesuffix(FINETUNED),
        learned=row.system in METHODS,
        epochs=epochs if row.stage else 0,
        heads=row.heads_open,
        total=row.heads_total,
        value=row.main.value,
        difference=row.main.difference,
        interval=row.main.difference_ci95,
        by_kind=row.heads_by_kind,
        kinds=kinds,
        by_site=row.heads_by_site,
    )


# ---------------------------------------------------------------- analyze.py


def read_roles(path: Path) -> Roles | None:
    """The tables of analyze.py in a folder; empty where one is missing, None where there are none."""
    folder = RunFolder(path)
    if not (folder / "roles.csv").is_file():
        return None

    def table(name: str) -> list[Row]:
        return read_table(folder, name) if (folder / name).is_file() else []

    return Roles(
        roles=table("roles.csv"),
        nearest=table("nearest.csv"),
        correlations=table("correlations.csv"),
        syntax=table("syntax-best.csv"),
        survival=table("survival-test.csv"),
        shares=folder.read_json("lrp.json")["head_maps"]["share"] if (folder / "lrp.json").is_file() else {},
    )
