"""The parts of a run folder that are logged to Weights & Biases, as plain values. Nothing here names a
machine: of a setting that is a path only the last name is kept, and the command is left out."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgates.configs.kinds import KINDS
from headgates.gates import GateBank
from headgates.records.folder import RunFolder, lines_in_file, recipe_of
from headgates.records.row import ResultRow
from headgates.records.source import Lines
from headgates.records.table import with_ends

# settings that may be paths
PATHS = ("data", "data_dir", "base", "runs", "encoder")
RECORDED_FACTS = ("commit", "device", "versions")  # facts of the process that trained the run
HEAD_NUMBERS = ("log_alpha", "open_prob", "open")  # of a head
SHOWN_SENTENCES = 50  # number of test sentences in the table of translations
ARTIFACTS = {"gates.json": "gates", "best.pt": "model", "report.html": "report"}  # -> type of the artifact

TableContent = tuple[list[Any], list[list[Any]]]  # columns, rows


def configuration(folder: RunFolder, facts: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run with its hashes, and what RECORDED_FACTS names: of its result.json, or `facts` if
    there is none yet."""
    made_by: Mapping[str, object] = folder.result() or facts
    settings = folder.config()
    settings |= {name: Path(settings[name]).name for name in PATHS if settings.get(name)}
    return settings | {name: made_by[name] for name in RECORDED_FACTS}


def run_summary(folder: RunFolder) -> dict[str, Any]:
    """The numbers of the run's own system by the names of configs.metrics.SUMMARY, and
    `systems/<system>/...` for every row."""
    numbers = numbers_of(folder.row_of(folder.own_system()))
    for row in folder.rows():
        own = {name: measure.value for name, measure in row.measures.items()} | {"heads_open": row.heads_open}
        numbers |= {f"systems/{row.system}/{name}": value for name, value in own.items()}
    return numbers


def numbers_of(row: ResultRow) -> dict[str, Any]:
    """A row of result.json by the names of SUMMARY."""
    main, name = row.main, row.metric
    numbers: dict[str, Any] = {f"{name}_difference": main.difference, "p_value": main.p_value}
    numbers |= with_ends(name, main.ci95) | with_ends(f"{name}_difference", main.difference_ci95)
    numbers |= {metric: measure.value for metric, measure in row.measures.items()}
    heads = {"heads_open": row.heads_open, "heads_closed": row.heads_total - row.heads_open}
    heads |= {f"heads_open/{kind}": row.heads_by_kind.get(kind, 0) for kind in KINDS}
    speed = {"parameters": row.parameters, "seconds": row.seconds}
    return numbers | heads | {"heads_total": row.heads_total} | speed


def comparison(folder: RunFolder) -> TableContent:
    """A row for each system: the numbers of SUMMARY, its reference, and the signatures of the metrics."""
    rows = [
        {"system": row.system, **numbers_of(row), "reference": row.reference}
        | {f"{name}_signature": measure.signature for name, measure in row.measures.items()}
        for row in folder.rows()
    ]
    return list(rows[0]), [list(row.values()) for row in rows]


def translation_table(folder: RunFolder, test: Lines) -> TableContent:
    """A row for each of the first test sentences: source, reference, and the output of every system."""
    systems = [row.system for row in folder.rows()]
    # not folder.outputs: the other ranks are not asked
    outputs = (lines_in_file(folder / f"hypotheses/{system}.txt") for system in systems)
    columns = [*test, *outputs]
    rows = [list(row) for row in zip(*(column[:SHOWN_SENTENCES] for column in columns), strict=True)]
    return ["source", "reference", *systems], rows


def gate_rows(bank: GateBank, epoch: int) -> list[dict[str, Any]]:
    """A row for each head: where it is, log_alpha (for other gates their position), P(open), is it open."""
    rows = []
    for site, gate in bank.items():
        where = {"epoch": epoch, "site": site.name, "kind": site.kind, "layer": site.layer}
        numbers = {"log_alpha": gate.position(), **gate.numbers()}
        for head in range(site.heads):
            log_alpha, p_open, is_open = (numbers[name][head].item() for name in HEAD_NUMBERS)
            rows.append(where | {"head": head, "log_alpha": log_alpha, "p_open": p_open, "open": is_open})
    return rows


def artifact_name(folder: RunFolder, file: str) -> str:
    """`<run>-<file>` in the characters that W&B takes, 128 at most."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "-", f"{folder.path.name}-{Path(file).stem}")[-128:]


def aliases(config: dict[str, Any]) -> list[str]:
    """The names by which an artifact is found beside `latest`: what made it, seed and commit."""
    recipe = recipe_of(config)
    made = [] if recipe is None else [f"{recipe.choose}-{recipe.budget.file_word}".replace(":", ".")]
    return [*made, f"seed-{config['seed']}", str(config["commit"])]
