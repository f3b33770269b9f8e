"""What `prune.py` found, on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from pruning.ablation import LEVEL, significant
from pruning.curve import SIGNIFICANT, choose
from pruning.subject import Subject
from report.terminal import columns, show
from runfolder.table import Row

ABLATION = ["BLEU", "difference", "95%", "p", "p (Holm)"]  # the columns of `ablation_cells`


def curves_table(subject: Subject, curves: Mapping[str, Sequence[Row]]) -> None:
    """Test BLEU of every curve at every share of closed heads (mean over its seeds), then what was chosen on validation."""
    table = columns(f"{subject.folder.path}: test BLEU (difference) by heads closed", [], ["closed", *curves])
    shares = {round(row["closed_share"], 9) for rows in curves.values() for row in rows}
    for share in sorted(shares):
        groups = [[row for row in rows if round(row["closed_share"], 9) == share] for rows in curves.values()]
        table.add_row(f"{share:.0%}", *map(mean_cell, groups))
    show(table)
    title = f"the most heads closed without a significant loss on validation (p >= {SIGNIFICANT})"
    table = columns(title, ["curve"], ["closed", "heads", "valid BLEU", "test BLEU", "difference", "95%", "p"])
    for name, rows in curves.items():
        table.add_row(name, *chosen_cells(choose(rows)))
    show(table)


def mean_cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    bleu, difference = (sum(row[name] for row in rows) / len(rows) for name in ("test_bleu", "test_bleu_difference"))
    return f"{bleu:.2f} ({difference:+.2f})"


def chosen_cells(chosen: Mapping[str, Any]) -> list[str]:
    return [
        f"{chosen['heads_closed']} ({chosen['closed_share']:.0%})",
        f"{chosen['heads_open']}/{chosen['heads_total']}",
        f"{chosen['valid_bleu']:.2f}",
        f"{chosen['test_bleu']:.2f}",
        f"{chosen['test_bleu_difference']:+.2f}",
        span(chosen["test_bleu_difference_low"], chosen["test_bleu_difference_high"]),
        f"{chosen['test_bleu_p_value']:.3f}",
    ]


def span(low: float, high: float) -> str:
    return f"{low:+.2f} to {high:+.2f}"


def one_table(subject: Subject, rows: Sequence[Row], *, most: int = 10) -> None:
    """How many heads matter, and those that matter most."""
    found = significant(rows)
    title = f"{subject.folder.path}: heads whose removal alone changes BLEU at p < {LEVEL}"
    table = columns(title, ["kind"], ["heads", "raw p", "Holm", "better without (raw)"])
    for kind, counts in found["raw"].items():
        holm = found["holm"][kind]["significant"]
        table.add_row(kind, *(str(number) for number in (counts["tested"], counts["significant"], holm, counts["improve"])))
    show(table)
    farthest = sorted(rows, key=lambda row: -abs(row["bleu_difference"]))[:most]
    table = columns(f"the {len(farthest)} heads that change BLEU most", ["head"], [*ABLATION, "lines changed"])
    for row in farthest:
        table.add_row(f"{row['site']}.{row['head']}", *ablation_cells(row), f"{row['changed_share']:.0%}")
    show(table)


def all_but_one_table(subject: Subject, rows: Sequence[Row]) -> None:
    """Every layer with its best head alone, chosen on validation."""
    table = columns(f"{subject.folder.path}: each layer with its best head alone", ["layer"], ["head", *ABLATION])
    for row in rows:
        table.add_row(row["site"], str(row["head"]), *ablation_cells(row))
    show(table)


def ablation_cells(row: Row) -> list[str]:
    interval = span(row["difference_low"], row["difference_high"])
    return [f"{row['bleu']:.2f}", f"{row['bleu_difference']:+.2f}", interval, f"{row['p_value']:.4f}", f"{row['p_value_holm']:.4f}"]


def transfer_table(name: str, correlations: Mapping[str, Mapping[str, Any]]) -> None:
    """How the heads' BLEU differences on two test sets go together."""
    table = columns(f"BLEU differences on the run's test set and on {name}", ["kind"], ["heads", "Pearson r", "p", "Spearman rho", "p"])
    for kind, found in correlations.items():
        cells = [[f"{pair[0]:.2f}", f"{pair[1]:.2g}"] if (pair := found[each]) else ["none", ""] for each in ("pearson", "spearman")]
        table.add_row(kind, str(found["heads"]), *cells[0], *cells[1])
    show(table)
