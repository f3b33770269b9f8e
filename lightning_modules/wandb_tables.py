"""The parts of a run folder that are logged to Weights & Biases, as plain values: configuration, summary,
tables, heat map and files.

Nothing here names a machine: of a setting that is a path only the last name is kept, and the command is left
out.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headgates.configs.methods import METHODS, method_of
from headgates.configs.schema import KINDS
from headgates.gates import GateBank
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import ResultRow
from headgates.workbench.source import Lines

PATHS = (
    "data",
    "data_dir",
    "train_files",
    "valid_files",
    "test_files",
    "base",
    "runs",
    "encoder",
)  # settings that may be paths
RECORDED = ("commit", "device", "versions")  # facts of the process that trained the run
SENTENCES = 50  # number of test sentences in the table of translations
FILES = {
    "gates.json": "gates",
    **{f"{method.removed}.pt": "model" for method in METHODS.values()},
    "report.html": "report",
}  # -> artifact
LONGEST = 128  # characters of a name in W&B

Table = tuple[list[Any], list[list[Any]]]  # columns, rows


def configuration(folder: RunFolder, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with its hashes, and the commit, device and versions with which it was
    trained; these are those of its result.json, or `facts` if there is none yet."""
    made_by = folder.result() or facts
    settings = {
        name: last_names(value) if name in PATHS else value for name, value in folder.config().items()
    }
    return settings | {name: made_by[name] for name in RECORDED}


def last_names(value: Any) -> Any:
    """Return the last name of a path, or of each path in a list; None stays None."""
    if isinstance(value, list):
        return [last_names(path) for path in value]
    return None if value is None else Path(value).name


# ---------------------------------------------------------------- the evaluation


def summary(folder: RunFolder) -> dict[str, float]:
    """Return the numbers of the run's own system by the names of configs.metrics.SUMMARY, and
    `systems/<system>/...` for every row."""
    numbers = numbers_of(own_row(folder))
    for row in folder.rows():
        numbers |= {
            f"systems/{row.system}/{name}": value
            for name, value in (values_of(row) | {"heads_open": row.heads_open}).items()
        }
    return numbers


def own_row(folder: RunFolder) -> ResultRow:
    """Return the row of the run's own system: the base, or the one with learned gates."""
    own = folder.own_system()
    return next(row for row in folder.rows() if row.system == own)


def values_of(row: ResultRow) -> dict[str, float]:
    return {name: measure.value for name, measure in row.measures.items()}


def numbers_of(row: ResultRow) -> dict[str, float]:
    """Return a row of result.json by the names of SUMMARY."""
    main, name = row.main, row.metric
    numbers: dict[str, Any] = (
        {name: main.value} | interval_ends(name, main.ci95) | {f"{name}_difference": main.difference}
    )
    numbers |= (
        interval_ends(f"{name}_difference", main.difference_ci95) | {"p_value": main.p_value} | values_of(row)
    )
    numbers |= {
        "heads_open": row.heads_open,
        "heads_closed": row.heads_total - row.heads_open,
        "heads_total": row.heads_total,
    }
    numbers |= {f"heads_open/{kind}": row.heads_by_kind.get(kind, 0) for kind in KINDS}
    return numbers | {"parameters": row.parameters, "sentences_per_second": row.sentences_per_second}


def interval_ends(name: str, interval: tuple[float, float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def comparison(folder: RunFolder, test: Lines) -> Table:
    """Return a row for each system: the numbers of SUMMARY, the system it is compared with, and the
    signatures of the metrics."""
    rows = folder.rows()
    columns = [
        "system",
        *numbers_of(rows[0]),
        "reference",
        *(f"{name}_signature" for name in rows[0].measures),
    ]
    signatures = ([measure.signature for measure in row.measures.values()] for row in rows)
    return columns, [
        [row.system, *numbers_of(row).values(), row.reference, *signed]
        for row, signed in zip(rows, signatures, strict=True)
    ]


def translations(folder: RunFolder, test: Lines) -> Table:
    """Return a row for each of the first test sentences: source, reference, and the output of every
    system."""
    systems = [row.system for row in folder.rows()]
    columns = [
        test[0],
        test[1],
        *((folder / f"hypotheses/{system}.txt").read_bytes().decode().split("\n")[:-1] for system in systems),
    ]
    rows = [list(row) for row in zip(*(column[:SENTENCES] for column in columns), strict=True)]
    return ["source", "reference", *systems], rows


TABLES: dict[str, Callable[[RunFolder, Lines], Table]] = {
    "comparison": comparison,
    "translations": translations,
}


# ---------------------------------------------------------------- gates


def heads(bank: GateBank, epoch: int) -> list[dict[str, Any]]:
    """Return a row for each head: epoch, site, kind, layer, head, log_alpha (for other gates their position),
    P(open), is it open."""
    rows = []
    for site, gate in bank.items():
        numbers = {name: values.tolist() for name, values in gate.numbers().items()}
        positions = gate.position().tolist()
        for head in range(site.heads):
            where = {"epoch": epoch, "site": site.name, "kind": site.kind, "layer": site.layer, "head": head}
            gated = {
                "log_alpha": positions[head],
                "p_open": numbers["open_prob"][head],
                "open": numbers["open"][head],
            }
            rows.append(where | gated)
    return rows


def heat_map(rows: Sequence[dict[str, Any]], *, title: str) -> np.ndarray:
    """Draw P(open) of every head as a small picture, (height, width, 3) in bytes, with a row for each site
    and a column for each head."""
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,  # here: it takes half a second to import, and most runs do not need it
    )
    from matplotlib.figure import Figure

    sites = list(dict.fromkeys(row["site"] for row in rows))
    values = np.full((len(sites), 1 + max(row["head"] for row in rows)), np.nan)
    for row in rows:
        values[sites.index(row["site"]), row["head"]] = row["p_open"]
    figure = Figure(
        figsize=(2.4 + 0.3 * values.shape[1], 0.9 + 0.3 * len(sites)),
        dpi=90,
        layout="constrained",
        facecolor="white",
    )
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto", interpolation="nearest")
    axes.set_xticks(range(values.shape[1]))
    axes.set_yticks(range(len(sites)), sites)
    axes.tick_params(labelsize=8, length=0)
    axes.set_xlabel("head", fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    figure.colorbar(image, ax=axes, ticks=(0, 0.5, 1)).ax.tick_params(labelsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


# ---------------------------------------------------------------- files


def files(folder: RunFolder) -> list[str]:
    """Return the names in FILES of which the run has a file."""
    return [name for name in FILES if (folder / name).is_file()]


def artifact_name(folder: RunFolder, file: str) -> str:
    """`<run>-<file>` in the characters that W&B takes."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "-", f"{folder.path.name}-{Path(file).stem}")[-LONGEST:]


def metadata(configuration: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return the metadata of an artifact: which run it belongs to, and how good that run is."""
    row = own_row(folder)
    identity = {
        name: configuration[name]
        for name in ("run_hash", "base_hash", "lambda", "seed", "commit")
        if name in configuration
    }
    return identity | {"heads_open": row.heads_open, "heads_total": row.heads_total, **values_of(row)}


def aliases(configuration: dict[str, Any]) -> list[str]:
    """Return the names by which an artifact is found beside `latest`: the value that steers its gates, the
    seed and the commit."""
    method = method_of(configuration)
    gated = [f"{method.steered_by}-{method.steering(configuration):g}"] if method else []
    return [*gated, f"seed-{configuration['seed']}", str(configuration["commit"])]
