"""The results of `analyze --ablate` as tables on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from headgates.analysis.significance import LEVEL
from headgates.explain.ablation import significance_counts
from headgates.records.source import Source
from headgates.records.table import TableRow
from headgates.report.table import interval_text, number_text, search_title, show

TABLE_HEADS = 10  # heads of a table


def one_table(unpruned: Source, rows: Sequence[TableRow]) -> None:
    """Print for each kind how many heads matter, then the TABLE_HEADS heads whose removal changes the metric
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
    farthest = sorted(rows, key=lambda row: -abs(row[difference]))[:TABLE_HEADS]
    title = f"the {len(farthest)} heads that change {metric.title} most"
    ablation_table(title, metric.name, metric.title, farthest)


def all_but_one_table(unpruned: Source, rows: Sequence[TableRow]) -> None:
    """Print for every layer the metric with its best head alone; the head was chosen on validation."""
    metric = unpruned.task.metrics[0]
    found = search_title(unpruned.search)
    title = f"{unpruned.folder.path}: {found}each layer with its best head alone"
    ablation_table(title, metric.name, metric.title, rows)


def ablation_table(title: str, name: str, words: str, rows: Sequence[TableRow]) -> None:
    p_values = {"p": "p_value", "p (Holm)": "p_value_holm", "McNemar": "p_mcnemar"}
    known = {column: key for column, key in p_values.items() if any(key in row for row in rows)}
    cells = []
    for row in rows:
        difference, ends = row[f"{name}_difference"], (row["difference_low"], row["difference_high"])
        compared = [f"{row[name]:.2f}", f"{difference:+.2f}", interval_text(ends)]
        p_cells = (number_text(row[key], ".4f") for key in known.values())
        cells.append([f"{row['site']}.{row['head']}", *compared, *p_cells])
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
