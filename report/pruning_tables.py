"""The results of `prune.py` as tables on the terminal."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from headgates.analysis.circuit_areas import circuit_areas
from headgates.analysis.significance import LEVEL
from headgates.pruning.ablation import significance_counts
from headgates.pruning.curve import choose_step
from headgates.pruning.unpruned_model import UnprunedModel
from headgates.records.table import Row
from headgates.report.table import difference_cells, search_title, show

DIFFERENCE = ["difference", "95%", "p"]


def curves_table(unpruned: UnprunedModel, curves: Mapping[str, Sequence[Row]]) -> None:
    """Print the step chosen on validation, then the test metric of every curve at every share of closed heads
    (mean over its seeds)."""
    metric, found = unpruned.task.metrics[0], search_title(unpruned.search)
    test, chosen = f"test_{metric.name}", {name: choose_step(rows) for name, rows in curves.items()}
    if unpruned.unlearned:
        chosen = {}
    else:
        most = max(chosen, key=lambda name: chosen[name]["closed_share"])
        print(
            f"By {most} {chosen[most]['heads_closed']} of {chosen[most]['heads_total']} heads close without "
            f"a significant loss on validation ({found}p >= {LEVEL})."
        )
    rows = []
    for name, step in chosen.items():
        interval = step[f"{test}_difference_low"], step[f"{test}_difference_high"]
        heads = [
            f"{step['heads_closed']} ({step['closed_share']:.0%})",
            f"{step['heads_open']}/{step['heads_total']}",
        ]
        scores = [f"{step[f'{split}_{metric.name}']:.2f}" for split in ("valid", "test")]
        compared = difference_cells(step[f"{test}_difference"], interval, step[f"{test}_p_value"])
        rows.append([name, *heads, *scores, *compared, *areas_cells(curves[name], test)])
    title = f"{unpruned.folder.path}: {found}the most heads closed without a significant loss on validation"
    measured = [f"{split} {metric.title}" for split in ("valid", "test")]
    columns = ["curve", "closed", "heads", *measured, *DIFFERENCE, "CPR", "CMD"]
    show(title, columns, rows)
    by_share: dict[str, dict[str, list[Row]]] = {}
    for name, curve in curves.items():
        for row in sorted(curve, key=lambda row: row["closed_share"]):
            by_share.setdefault(f"{row['closed_share']:.0%}", {}).setdefault(name, []).append(row)
    cells = []
    for share, at in by_share.items():
        means = {
            name: (fmean(row[test] for row in same), fmean(row[f"{test}_difference"] for row in same))
            for name, same in at.items()
        }
        lost = "" if unpruned.unlearned else " ({:+.2f})"
        shown = {name: f"{value:.2f}{lost.format(less)}" for name, (value, less) in means.items()}
        cells.append([share, *(shown.get(name, "") for name in curves)])
    difference = "" if unpruned.unlearned else " (difference)"
    show(f"test {metric.title}{difference} by heads closed, {found}".rstrip(", "), ["closed", *curves], cells)


def areas_cells(rows: Sequence[Row], metric: str) -> list[str]:
    """CPR and CMD of a curve, the mean over its seeds at each step; empty where some heads never close."""
    steps: dict[float, list[float]] = {}
    for row in rows:
        steps.setdefault(1 - row["closed_share"], []).append(row[metric])
    try:
        return [f"{area:.2f}" for area in circuit_areas({share: fmean(at) for share, at in steps.items()})]
    except ValueError:
        return ["", ""]


MOST = 10  # heads of a table


def one_table(unpruned: UnprunedModel, rows: Sequence[Row]) -> None:
    """Print for each kind how many heads matter, then the MOST heads whose removal changes the metric
    most."""
    metric = unpruned.task.metrics[0]
    difference = f"{metric.name}_difference"
    counts = significance_counts(rows, difference)
    found = search_title(unpruned.search)
    title = f"{unpruned.folder.path}: {found}heads whose removal alone changes {metric.title} at p < {LEVEL}"
    by_kind = []
    for kind, raw in counts["raw"].items():
        holm = counts["holm"][kind]["significant"]
        by_kind.append([kind, *map(str, (raw["tested"], raw["significant"], holm, raw["improve"]))])
    show(title, ["kind", "heads", "raw p", "Holm", "better without (raw)"], by_kind)
    farthest = sorted(rows, key=lambda row: -abs(row[difference]))[:MOST]
    title = f"the {len(farthest)} heads that change {metric.title} most"
    ablation_table(title, metric.name, metric.title, farthest)


def all_but_one_table(unpruned: UnprunedModel, rows: Sequence[Row]) -> None:
    """Print for every layer the metric with its best head alone; the head was chosen on validation."""
    metric = unpruned.task.metrics[0]
    found = search_title(unpruned.search)
    title = f"{unpruned.folder.path}: {found}each layer with its best head alone"
    ablation_table(title, metric.name, metric.title, rows)


def ablation_table(title: str, name: str, words: str, rows: Sequence[Row]) -> None:
    p_values = {"p": "p_value", "p (Holm)": "p_value_holm", "McNemar": "p_mcnemar"}
    known = {column: key for column, key in p_values.items() if any(key in row for row in rows)}
    cells = []
    for row in rows:
        between = row["difference_low"], row["difference_high"]
        compared = difference_cells(
            row[f"{name}_difference"], between, *(row[key] for key in known.values()), digits=4
        )
        cells.append([f"{row['site']}.{row['head']}", f"{row[name]:.2f}", *compared])
    show(title, ["head", words, "difference", "95%", *known], cells)


def transfer_table(name: str, title: str, correlations: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how the heads' differences on the run's test set correlate with those on the test set `name`.
    title: that of the metric."""
    rows = []
    for kind, of_kind in correlations.items():
        pairs = [of_kind[name] for name in ("pearson", "spearman")]
        texts = [["none", ""] if pair is None else [f"{pair[0]:.2f}", f"{pair[1]:.2g}"] for pair in pairs]
        rows.append([kind, str(of_kind["heads"]), *texts[0], *texts[1]])
    columns = ["kind", "heads", "Pearson r", "p", "Spearman rho", "p"]
    show(f"{title} differences on the run's test set and on {name}", columns, rows)
