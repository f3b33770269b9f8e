"""The results of `prune.py` as tables on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from headgates.analysis.significance import LEVEL
from headgates.report.table import interval_text, show
from headgates.workbench.ablation import significance_counts
from headgates.workbench.curve import choose_step
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.points import Point
from headgates.workbench.table import Row

ABLATION = ["difference", "95%", "p", "p (Holm)"]  # the columns of `ablation_cells` after the metric's own


def curves_table(dense: DenseModel, curves: Mapping[str, Sequence[Row]]) -> None:
    """Print the step chosen on validation, then the test metric of every curve at every share of closed heads
    (mean over its seeds)."""
    metric = dense.source.task.metrics[0]
    shares = sorted({round(row["closed_share"], 9) for rows in curves.values() for row in rows})
    chosen = {name: choose_step(rows) for name, rows in curves.items()}
    most = max(chosen, key=lambda name: chosen[name]["closed_share"])
    print(
        f"By {most} {chosen[most]['heads_closed']} of {chosen[most]['heads_total']} heads close without a "
        f"significant loss on validation (p >= {LEVEL})."
    )
    columns = ["curve", "closed", "heads", f"valid {metric.title}", f"test {metric.title}"]
    title = f"{dense.folder.path}: the most heads closed without a significant loss on validation"
    rows = ([name, *chosen_cells(step, metric.name)] for name, step in chosen.items())
    show(title, [*columns, "difference", "95%", "p"], rows)
    by_share = []
    for share in shares:
        at = [[row for row in rows if round(row["closed_share"], 9) == share] for rows in curves.values()]
        by_share.append([f"{share:.0%}", *(mean_cell(rows, metric.name) for rows in at)])
    show(f"test {metric.title} (difference) by heads closed", ["closed", *curves], by_share)


def points_table(dense: DenseModel, points: Sequence[Point]) -> None:
    """Print every metric and the loss of the unpruned model and of each point on both splits, with
    differences and two-sided p."""
    metrics = dense.source.task.metrics
    first, last = metrics[0], points[-1]
    found = f"With {last.heads_open} of {last.heads_total} heads the model has"
    found += f" {last.scores['test'][first.name]:.2f} {first.title} on the test set"
    if (compared := last.compared.get("test")) is not None:
        found += f", {compared[f'{first.name}_difference']:+.2f} against the unpruned model"
    print(f"{found}.")
    for split, words in (("valid", "validation"), ("test", "test")):
        columns = [name for metric in metrics for name in (metric.title, "difference", "95%", "p")]
        rows = []
        for point in points:
            compared = point.compared.get(split)
            cells = [
                "unpruned" if compared is None else point.order,
                f"{point.heads_open}/{point.heads_total}",
            ]
            for metric in metrics:
                cells.append(f"{point.scores[split][metric.name]:.2f}")
                cells += ["", "", ""] if compared is None else difference_cells(compared, metric.name)
            loss, unpruned = point.losses[split], points[0].losses[split]
            rows.append([*cells, f"{loss:.4f}", f"{loss - unpruned:+.4f}"])
        title = f"{dense.folder.path}: {words}"
        show(title, ["order", "heads", *columns, "loss", "difference"], rows)


def difference_cells(compared: Mapping[str, Any], metric: str) -> list[str]:
    interval = interval_text(compared[f"{metric}_difference_ci95"])
    return [f"{compared[f'{metric}_difference']:+.2f}", interval, f"{compared[f'{metric}_p_value']:.3f}"]


def mean_cell(rows: Sequence[Row], metric: str) -> str:
    if not rows:
        return ""
    value, difference = (
        sum(row[name] for row in rows) / len(rows) for name in (f"test_{metric}", f"test_{metric}_difference")
    )
    return f"{value:.2f} ({difference:+.2f})"


def chosen_cells(chosen: Mapping[str, Any], metric: str) -> list[str]:
    return [
        f"{chosen['heads_closed']} ({chosen['closed_share']:.0%})",
        f"{chosen['heads_open']}/{chosen['heads_total']}",
        f"{chosen[f'valid_{metric}']:.2f}",
        f"{chosen[f'test_{metric}']:.2f}",
        f"{chosen[f'test_{metric}_difference']:+.2f}",
        interval_text((chosen[f"test_{metric}_difference_low"], chosen[f"test_{metric}_difference_high"])),
        f"{chosen[f'test_{metric}_p_value']:.3f}",
    ]


def one_table(dense: DenseModel, rows: Sequence[Row], *, most: int = 10) -> None:
    """Print for each kind how many heads matter, then the `most` heads whose removal changes the metric
    most."""
    metric = dense.source.task.metrics[0]
    difference = f"{metric.name}_difference"
    counts = significance_counts(rows, difference)
    title = f"{dense.folder.path}: heads whose removal alone changes {metric.title} at p < {LEVEL}"
    by_kind = []
    for kind, raw in counts["raw"].items():
        holm = counts["holm"][kind]["significant"]
        by_kind.append([kind, *map(str, (raw["tested"], raw["significant"], holm, raw["improve"]))])
    show(title, ["kind", "heads", "raw p", "Holm", "better without (raw)"], by_kind)
    farthest = sorted(rows, key=lambda row: -abs(row[difference]))[:most]
    mcnemar = ["McNemar"] * any("p_mcnemar" in row for row in rows)
    heads = []
    for row in farthest:
        cells = [f"{row['site']}.{row['head']}", *ablation_cells(row, metric.name)]
        heads.append([*cells, *(f"{row['p_mcnemar']:.4f}" for _ in mcnemar), f"{row['changed_share']:.0%}"])
    title = f"the {len(farthest)} heads that change {metric.title} most"
    show(title, ["head", metric.title, *ABLATION, *mcnemar, "lines changed"], heads)


def all_but_one_table(dense: DenseModel, rows: Sequence[Row]) -> None:
    """Print for every layer the metric with its best head alone; the head was chosen on validation."""
    metric = dense.source.task.metrics[0]
    title = f"{dense.folder.path}: each layer with its best head alone"
    layers = ([row["site"], str(row["head"]), *ablation_cells(row, metric.name)] for row in rows)
    show(title, ["layer", "head", metric.title, *ABLATION], layers)


def ablation_cells(row: Row, metric: str) -> list[str]:
    interval = interval_text((row["difference_low"], row["difference_high"]))
    return [
        f"{row[metric]:.2f}",
        f"{row[f'{metric}_difference']:+.2f}",
        interval,
        f"{row['p_value']:.4f}",
        f"{row['p_value_holm']:.4f}",
    ]


def transfer_table(name: str, title: str, correlations: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how the heads' differences on the run's test set correlate with those on the test set `name`.
    title: that of the metric."""
    columns = ["kind", "heads", "Pearson r", "p", "Spearman rho", "p"]
    rows = (
        [kind, str(of_kind["heads"]), *pair(of_kind["pearson"]), *pair(of_kind["spearman"])]
        for kind, of_kind in correlations.items()
    )
    show(f"{title} differences on the run's test set and on {name}", columns, rows)


def pair(correlation: tuple[float, float] | None) -> list[str]:
    """The cells of a coefficient and its p-value."""
    return ["none", ""] if correlation is None else [f"{correlation[0]:.2f}", f"{correlation[1]:.2g}"]
