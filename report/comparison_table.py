"""The comparison on the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from runfolder.folder import RunFolder


def comparison_table(run: RunFolder) -> None:
    """Print the rows of a run's result.json."""
    result = run.read_json("result.json")
    rows = result["rows"]
    kinds = list(rows[0]["heads_by_kind"])
    table = Table(title=f"{run.path}: test set, differences against {result['reference']}")
    table.add_column("system")
    for name in ("heads", *kinds, "BLEU", "95%", "chrF", "difference", "95%", "p", "sentences/s"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*cells(row, kinds, result["reference"]))
    Console(width=None if Console().is_terminal else 140).print(table)
    print(rows[0]["bleu_signature"])
    for row in rows:
        if row["system"].startswith("base") and not row["stage"]["converged"]:
            print(f"{row['system']} is not converged: its validation loss still fell by 0.5% over the last 4 epochs; train it for longer")


def cells(row: dict[str, Any], kinds: list[str], reference: str) -> list[str]:
    low, high = row["bleu_ci95"]
    first = [row["system"], f"{row['heads_open']}/{row['heads_total']}", *(str(row["heads_by_kind"][kind]) for kind in kinds)]
    first += [f"{row['bleu']:.2f}", f"{low:.1f} to {high:.1f}", f"{row['chrf']:.2f}"]
    if row["system"] == reference:
        return [*first, "reference", "", "", f"{row['sentences_per_second']:.0f}"]
    low, high = row["bleu_difference_ci95"]
    p = row["p_value_vs_reference"]
    return [*first, f"{row['bleu_difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{p:.3f}", f"{row['sentences_per_second']:.0f}"]
