"""What Weights & Biases gets of a run folder: its configuration, summary, tables, heat map and files, as plain values.

Nothing here names a machine: settings that are paths are reduced to their last name, and the command is left out.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.methods import METHODS, method_of
from configs.schema import KINDS
from gates import GateBank
from runfolder.folder import RunFolder
from runfolder.row import ResultRow

PATHS = ("data", "data_dir", "train_files", "valid_files", "test_files", "base", "runs")  # settings that may be paths
RECORDED = ("commit", "device", "versions")  # of what made the run
SENTENCES = 50  # of the test set in the table of translations
FILES = {"gates.json": "gates", **{f"{method.removed}.pt": "model" for method in METHODS.values()}, "report.html": "report"}  # -> artifact

LONGEST = 128  # characters of a name in W&B

Lines = tuple[Sequence[str], Sequence[str]]  # source and reference of the test set
Table = tuple[list[Any], list[list[Any]]]  # columns, rows


def configuration(folder: RunFolder, facts: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run with its hashes, and commit, device and versions of what made it: `facts`, or result.json if there is one."""
    made_by = folder.result() or facts
    settings = {name: last_names(value) if name in PATHS else value for name, value in folder.config().items()}
    return settings | {name: made_by[name] for name in RECORDED}


def last_names(value: Any) -> Any:
    """The last name of a path, or of each in a list; None stays."""
    if isinstance(value, list):
        return [last_names(path) for path in value]
    return None if value is None else Path(value).name


# ---------------------------------------------------------------- the evaluation


def summary(folder: RunFolder) -> dict[str, float]:
    """The names of SUMMARY for the run's own system, and `systems/<system>/...` for every row."""
    rows, own = folder.rows(), folder.own_system()
    numbers = numbers_of(next(row for row in rows if row.system == own))
    for row in rows:
        measures = {name: measure.value for name, measure in row.measures.items()} | {"heads_open": row.heads_open}
        numbers |= {f"systems/{row.system}/{name}": value for name, value in measures.items()}
    return numbers


def numbers_of(row: ResultRow) -> dict[str, float]:
    """A row of result.json under the names of SUMMARY."""
    main, name = row.main, row.metric
    numbers: dict[str, Any] = {name: main.value} | interval_ends(name, main.ci95)
    numbers |= (
        {f"{name}_difference": main.difference} | interval_ends(f"{name}_difference", main.difference_ci95) | {"p_value": main.p_value}
    )
    numbers |= {other: measure.value for other, measure in row.measures.items() if other != name}
    numbers |= {"heads_open": row.heads_open, "heads_closed": row.heads_total - row.heads_open, "heads_total": row.heads_total}
    numbers |= {f"heads_open/{kind}": row.heads_by_kind.get(kind, 0) for kind in KINDS}
    return numbers | {"parameters": row.parameters, "sentences_per_second": row.sentences_per_second}


def interval_ends(name: str, interval: tuple[float, float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def comparison(folder: RunFolder, test: Lines) -> Table:
    """A row a system: the numbers of SUMMARY, what it is compared with, and the signatures."""
    rows = folder.rows()
    signatures = [f"{name}_signature" for name in rows[0].measures]
    lines = [
        [row.system, *numbers_of(row).values(), row.reference, *(measure.signature for measure in row.measures.values())] for row in rows
    ]
    return ["system", *numbers_of(rows[0]), "reference", *signatures], lines


def translations(folder: RunFolder, test: Lines) -> Table:
    """The first test sentences: source, reference, and a column for every system."""
    systems = [row.system for row in folder.rows()]
    columns = [test[0], test[1], *((folder / f"hypotheses/{system}.txt").read_bytes().decode().split("\n")[:-1] for system in systems)]
    rows = [list(row) for row in zip(*(column[:SENTENCES] for column in columns), strict=True)]
    return ["source", "reference", *systems], rows


TABLES: dict[str, Callable[[RunFolder, Lines], Table]] = {"comparison": comparison, "translations": translations}


# ---------------------------------------------------------------- gates


def heads(bank: GateBank, epoch: int) -> list[dict[str, Any]]:
    """A row a head: epoch, site, kind, layer, head, log_alpha (or what another kind of gate calls its position), p_open, open."""
    rows = []
    for site, gate in bank.items():
        numbers = {name: values.tolist() for name, values in gate.numbers().items()}
        positions = gate.position().tolist()
        for head in range(site.heads):
            where = {"epoch": epoch, "site": site.name, "kind": site.kind, "layer": site.layer, "head": head}
            gated = {"log_alpha": positions[head], "p_open": numbers["open_prob"][head], "open": numbers["open"][head]}
            rows.append(where | gated)
    return rows


def heat_map(rows: Sequence[dict[str, Any]], *, title: str) -> np.ndarray:
    """P(open) of every head as a small picture, (height, width, 3) of bytes: a row a site, a column a head."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import, and most runs need it not
    from matplotlib.figure import Figure

    sites = list(dict.fromkeys(row["site"] for row in rows))
    values = np.full((len(sites), 1 + max(row["head"] for row in rows)), np.nan)
    for row in rows:
        values[sites.index(row["site"]), row["head"]] = row["p_open"]
    figure = Figure(figsize=(2.4 + 0.3 * values.shape[1], 0.9 + 0.3 * len(sites)), dpi=90, layout="constrained", facecolor="white")
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
    """Those of FILES that the run has."""
    return [name for name in FILES if (folder / name).is_file()]


def artifact_name(folder: RunFolder, file: str) -> str:
    """`<run>-<file>` in the characters that W&B takes."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "-", f"{folder.path.name}-{Path(file).stem}")[-LONGEST:]


def metadata(configuration: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """What stands beside an artifact: of which run it is, and how good that is."""
    own = folder.own_system()
    row = next(row for row in folder.rows() if row.system == own)
    identity = {name: configuration[name] for name in ("run_hash", "base_hash", "lambda", "seed", "commit") if name in configuration}
    measures = {name: measure.value for name, measure in row.measures.items()}
    return identity | {"heads_open": row.heads_open, "heads_total": row.heads_total, **measures}


def aliases(configuration: dict[str, Any]) -> list[str]:
    """By what an artifact of a run is found beside `latest`: what steers its gates, seed, commit."""
    method = method_of(configuration)
    gated = [f"{method.steered_by}-{method.steering(configuration):g}"] if method else []
    return [*gated, f"seed-{configuration['seed']}", str(configuration["commit"])]
