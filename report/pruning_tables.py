"""The results of `prune.py` as tables on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from headgates.analysis.significance import LEVEL
from headgates.report.terminal import columns, interval_text, show
from headgates.workbench.ablation import significance_counts
from headgates.workbench.curve import choose_step
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.points import Point
from headgates.workbench.table import Row

ABLATION = ["difference", "95%", "p", "p (Holm)"]  # the columns of `ablation_cells` after the metric's own


def curves_table(dense: DenseModel, curves: Mapping[str, Sequence[Row]]) -> None:
    """Print the test score of every curve at every share of closed heads (mean over its seeds), then the step
    chosen on validation."""
    metric = dense.source.task.metrics[0]
    title = f"{dense.folder.path}: test {metric.title} (difference) by heads closed"
    groups: dict[float, dict[str, list[Row]]] = {}  # share of closed heads -> curve -> its rows there
    for name, rows in curves.items():
        for row in rows:
            groups.setdefault(round(row["closed_share"], 9), {}).setdefault(name, []).append(row)
    by_share = (
        [f"{share:.0%}", *(mean_cell(of_curve.get(name, []), metric.name) for name in curves)]
        for share, of_curve in sorted(groups.items())
    )
    show(columns(title, [], ["closed", *curves], by_share))
    title = f"the most heads closed without a significant loss on validation (p >= {LEVEL})"
    figures = ["closed", "heads", f"valid {metric.title}", f"test {metric.title}", "difference", "95%", "p"]
    show(
        columns(
            title,
            ["curve"],
            figures,
            ([name, *chosen_cells(choose_step(rows), metric.name)] for name, rows in curves.items()),
        )
    )


def points_table(dense: DenseModel, points: Sequence[Point]) -> None:
    """Print every metric and the loss of the whole model and of each point on both splits, with differences
    and two-sided p."""
    metrics = dense.source.task.metrics
    for split, words in (("valid", "validation"), ("test", "test")):
        figures = [
            "heads",
            *(name for metric in metrics for name in (metric.title, "difference", "95%", "p")),
            "loss",
            "difference",
        ]
        rows = []
        for point in points:
            cells = [f"{point.heads_open}/{point.heads_total}"]
            compared = point.compared.get(split)
            for metric in metrics:
                cells.append(f"{point.scores[split][metric.name]:.2f}")
                if compared is None:
                    cells += ["", "", ""]
                    continue
                interval = interval_text(compared[f"{metric.name}_difference_ci95"])
                cells += [
                    f"{compared[f'{metric.name}_difference']:+.2f}",
                    interval,
                    f"{compared[f'{metric.name}_p_value']:.3f}",
                ]
            more = point.losses[split] - points[0].losses[split]
            rows.append(
                [
                    "whole model" if compared is None else point.order,
                    *cells,
                    f"{point.losses[split]:.4f}",
                    f"{more:+.4f}",
                ]
            )
        show(columns(f"{dense.folder.path}: {words}", ["order"], figures, rows))


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
    by_kind = (
        [
            kind,
            *map(
                str, (raw["tested"], raw["significant"], counts["holm"][kind]["significant"], raw["improve"])
            ),
        ]
        for kind, raw in counts["raw"].items()
    )
    show(columns(title, ["kind"], ["heads", "raw p", "Holm", "better without (raw)"], by_kind))
    farthest = sorted(rows, key=lambda row: -abs(row[difference]))[:most]
    mcnemar = ["McNemar"] if rows and "p_mcnemar" in rows[0] else []
    heads = (
        [
            f"{row['site']}.{row['head']}",
            *ablation_cells(row, metric.name),
            *(f"{row['p_mcnemar']:.4f}" for _ in mcnemar),
            f"{row['changed_share']:.0%}",
        ]
        for row in farthest
    )
    title = f"the {len(farthest)} heads that change {metric.title} most"
    show(columns(title, ["head"], [metric.title, *ABLATION, *mcnemar, "lines changed"], heads))


def all_but_one_table(dense: DenseModel, rows: Sequence[Row]) -> None:
    """Print for every layer the score with its best head alone; the head was chosen on validation."""
    metric = dense.source.task.metrics[0]
    title = f"{dense.folder.path}: each layer with its best head alone"
    layers = ([row["site"], str(row["head"]), *ablation_cells(row, metric.name)] for row in rows)
    show(columns(title, ["layer"], ["head", metric.title, *ABLATION], layers))


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
    figures = ["heads", "Pearson r", "p", "Spearman rho", "p"]
    rows = (
        [kind, str(of_kind["heads"]), *pair(of_kind["pearson"]), *pair(of_kind["spearman"])]
        for kind, of_kind in correlations.items()
    )
    show(columns(f"{title} differences on the run's test set and on {name}", ["kind"], figures, rows))


def pair(correlation: tuple[float, float] | None) -> list[str]:
    """The cells of a coefficient and its p-value."""
    return ["none", ""] if correlation is None else [f"{correlation[0]:.2f}", f"{correlation[1]:.2g}"]
