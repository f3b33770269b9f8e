"""What `analyze --causes` found, on the terminal and for the page: every score against what
closing each head alone does, and which heads back each other up."""

from collections.abc import Sequence
from typing import Any

from headgates.analysis.metrics import Metric
from headgates.analysis.results import AnalysisResult
from headgates.records.table import TableRow
from headgates.report.causal_gating import gating_data, gating_table
from headgates.report.table import number_text, show

STRONGEST = 5  # pairs on the terminal
ON_PAGE = 40  # pairs on the page


def causes_table(result: AnalysisResult, metric: Metric) -> None:
    """Print the card, the strongest pairs and the causal gates."""
    rows = result.tables["causes"]
    names = {"": "loss", f"_{metric.name}": metric.title}
    shown = {ending: what for ending, what in names.items() if f"spearman{ending}" in rows[0]}
    columns = [column for what in shown.values() for column in (f"rho, {what}", "sign", "top 1/4")]
    lines = [
        [
            row["approximation"],
            *(
                number_text(row[f"{each}{ending}"], "+.2f" if each == "spearman" else ".0%")
                for ending in shown
                for each in ("spearman", "sign", "top_quarter")
            ),
            number_text(row["seconds"], ".1f"),
        ]
        for row in rows
    ]
    title = f"scores against closing each head alone, {result.facts['sentences']:,} training pairs"
    show(title, ["score", *columns, "seconds"], lines)
    for sentence in pair_sentences(result.tables["interactions"][:STRONGEST]):
        print(sentence)
    gating_table(result)


def pair_sentences(rows: Sequence[TableRow]) -> list[str]:
    """What closing two heads does beyond each alone, in words."""
    words = {True: "back each other up", False: "share a cost"}
    return [
        f"{row['head']} and {row['other']} {words[row['interaction'] > 0]}: closing both adds "
        f"{row['both']:.3f} nats a sentence to the loss, apart they add {row['head_alone']:.3f} and "
        f"{row['other_alone']:.3f}"
        for row in rows
    ]


def causes_sentence(result: AnalysisResult) -> str:
    """Which score comes nearest to the exact effects."""
    exact, *others = result.tables["causes"]
    compared = [row for row in others if row["spearman"] is not None]
    if not compared:  # too few heads
        return "What closing each head alone adds to the loss"
    best = max(compared, key=lambda row: row["spearman"])
    took = ""
    if best["seconds"] and exact["seconds"]:
        took = f" in {best['seconds']:.1f} s, exact in {exact['seconds']:.1f} s"
    return (
        f"Nearest to what closing each head alone adds to the loss is {best['approximation']}: Spearman's "
        f"rho {best['spearman']:.2f}{took}"
    )


def strongest_pairs(rows: Sequence[TableRow]) -> list[TableRow]:
    """The first ON_PAGE, and of those that back each other up the first, which the page names."""
    shown, backed = [*rows[:ON_PAGE]], [row for row in rows if row["interaction"] > 0][:1]
    return shown + [row for row in backed if row not in shown]


def causes_data(result: AnalysisResult) -> dict[str, Any]:
    """For the page: rows of the card, the strongest pairs, each head's numbers in the order of `names`, and
    causal gates."""
    heads = {
        f"{site.name}.{head}": [float(effects[site][head]) for effects in result.head_maps.values()]
        for site in next(iter(result.head_maps.values()))
        for head in range(site.heads)
    }
    return {
        "title": causes_sentence(result),
        "sentences": result.facts["sentences"],
        "paired": result.facts["heads_paired"],
        "rows": result.tables["causes"],
        "pairs": strongest_pairs(result.tables["interactions"]),
        "names": list(result.head_maps),
        "heads": heads,
        "gating": gating_data(result),
    }
