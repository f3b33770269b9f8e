"""What `prune.py` found, on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from pruning.ablation import significance_counts
from pruning.curve import choose_step
from pruning.dense_model import DenseModel
from pruning.significance import LEVEL
from report.terminal import columns, show
from runfolder.table import Row

ABLATION = ["difference", "95%", "p", "p (Holm)"]  # the columns of `ablation_cells` after the metric's own


def curves_table(dense: DenseModel, curves: Mapping[str, Sequence[Row]]) -> None:
    """Test BLEU of every curve at every share of closed heads (mean over its seeds), then what was chosen on validation."""
    metric = dense.source.task.metrics[0]
    table = columns(f"{dense.folder.path}: test {metric.title} (difference) by heads closed", [], ["closed", *curves])
    shares = {round(row["closed_share"], 9) for rows in curves.values() for row in rows}
    for share in sorted(shares):
        groups = [[row for row in rows if round(row["closed_share"], 9) == share] for rows in curves.values()]
        table.add_row(f"{share:.0%}", *(mean_cell(group, metric.name) for group in groups))
    show(table)
    title = f"the most heads closed without a significant loss on validation (p >= {LEVEL})"
    table = columns(title, ["curve"], ["closed", "heads", f"valid {metric.title}", f"test {metric.title}", "difference", "95%", "p"])
    for name, rows in curves.items():
        table.add_row(name, *chosen_cells(choose_step(rows), metric.name))
    show(table)


def mean_cell(rows: Sequence[Row], metric: str) -> str:
    if not rows:
        return ""
    value, difference = (sum(row[name] for row in rows) / len(rows) for name in (f"test_{metric}", f"test_{metric}_difference"))
    return f"{value:.2f} ({difference:+.2f})"


def chosen_cells(chosen: Mapping[str, Any], metric: str) -> list[str]:
    return [
        f"{chosen['heads_closed']} ({chosen['closed_share']:.0%})",
        f"{chosen['heads_open']}/{chosen['heads_total']}",
        f"{chosen[f'valid_{metric}']:.2f}",
        f"{chosen[f'test_{metric}']:.2f}",
        f"{chosen[f'test_{metric}_difference']:+.2f}",
        span(chosen[f"test_{metric}_difference_low"], chosen[f"test_{metric}_difference_high"]),
        f"{chosen[f'test_{metric}_p_value']:.3f}",
    ]


def span(low: float, high: float) -> str:
    return f"{low:+.2f} to {high:+.2f}"


def one_table(dense: DenseModel, rows: Sequence[Row], *, most: int = 10) -> None:
    """How many heads matter, and those that matter most."""
    metric = dense.source.task.metrics[0]
    difference = f"{metric.name}_difference"
    found = significance_counts(rows, difference)
    title = f"{dense.folder.path}: heads whose removal alone changes {metric.title} at p < {LEVEL}"
    table = columns(title, ["kind"], ["heads", "raw p", "Holm", "better without (raw)"])
    for kind, counts in found["raw"].items():
        holm = found["holm"][kind]["significant"]
        table.add_row(kind, *(str(number) for number in (counts["tested"], counts["significant"], holm, counts["improve"])))
    show(table)
    farthest = sorted(rows, key=lambda row: -abs(row[difference]))[:most]
    table = columns(f"the {len(farthest)} heads that change {metric.title} most", ["head"], [metric.title, *ABLATION, "lines changed"])
    for row in farthest:
        table.add_row(f"{row['site']}.{row['head']}", *ablation_cells(row, metric.name), f"{row['changed_share']:.0%}")
    show(table)


def all_but_one_table(dense: DenseModel, rows: Sequence[Row]) -> None:
    """Every layer with its best head alone, chosen on validation."""
    metric = dense.source.task.metrics[0]
    table = columns(f"{dense.folder.path}: each layer with its best head alone", ["layer"], ["head", metric.title, *ABLATION])
    for row in rows:
        table.add_row(row["site"], str(row["head"]), *ablation_cells(row, metric.name))
    show(table)


def ablation_cells(row: Row, metric: str) -> list[str]:
    interval = span(row["difference_low"], row["difference_high"])
    return [f"{row[metric]:.2f}", f"{row[f'{metric}_difference']:+.2f}", interval, f"{row['p_value']:.4f}", f"{row['p_value_holm']:.4f}"]


def transfer_table(name: str, title: str, correlations: Mapping[str, Mapping[str, Any]]) -> None:
    """How the heads' differences on two test sets go together; title: of the metric."""
    table = columns(f"{title} differences on the run's test set and on {name}", ["kind"], ["heads", "Pearson r", "p", "Spearman rho", "p"])
    for kind, found in correlations.items():
        cells = [[f"{pair[0]:.2f}", f"{pair[1]:.2g}"] if (pair := found[each]) else ["none", ""] for each in ("pearson", "spearman")]
        table.add_row(kind, str(found["heads"]), *cells[0], *cells[1])
    show(table)
