"""What causal gates found (explain/causal_gating.py), on the terminal and for the page."""

from typing import Any

from headgates.analysis.causal_gating import CAUSAL_ROLES
from headgates.analysis.results import AnalysisResult
from headgates.records.table import TableRow
from headgates.report.table import show


def gating_table(result: AnalysisResult) -> None:
    """Print each head's quantities, mean ± spread over the seeds, those that cost most first, and the
    labels."""
    rows = sorted(result.tables["causal-gates"], key=lambda row: -row["loss"])
    seeds = result.facts["seeds"]
    lines = [
        [
            f"{row['site']}.{row['head']}",
            row["label"],
            f"{row['seeds_alike']}/{seeds}",
            *(f"{row[name]:.2f} ± {row[f'{name}_spread']:.2f}" for name in CAUSAL_ROLES),
            f"{row['loss']:+.3f}",
        ]
        for row in rows
    ]
    title = f"causal gates, mean and spread over {seeds} seeds, beside the rise of the loss without the head"
    show(title, ["head", "label", "seeds", *CAUSAL_ROLES, "loss"], lines, words=2)
    print(f"{gating_sentence(result)}.")
    for sentence in label_sentences(result):
        print(sentence)


def gating_sentence(result: AnalysisResult) -> str:
    """How many labels do not depend on the seed."""
    heads, kept = len(result.tables["causal-gates"]), result.facts["labels_kept"]
    seeds = result.facts["seeds"]
    return f"Causal gates of {seeds} seeds: {kept} of {heads} heads have the same label in every seed"


def label_sentences(result: AnalysisResult) -> list[str]:
    """Of each label how many heads have it, and what closing them together does."""
    return [label_sentence(row) for row in result.tables["causal-labels"]]


def label_sentence(row: TableRow) -> str:
    if not row["in_any_seed"]:
        return f"{row['label']}: no head in any seed"
    counts = (
        f"{row['label']}: {row['by_the_mean']} heads by the mean, {row['fewest']} to {row['most']} in one "
        f"seed, {row['in_every_seed']} in every seed, {row['in_any_seed']} in any"
    )
    closed = [
        f"closing the {row[count]} {words} adds {row[f'together{end}']:+.3f} nats a sentence, alone they add "
        f"{row[f'singly{end}']:+.3f} in sum"
        for count, end, words in (
            ("by_the_mean", "", "by the mean"),
            ("in_every_seed", "_every", "of every seed"),
        )
        if row[count]
    ]
    return "; ".join([counts, *closed])


def gating_data(result: AnalysisResult) -> dict[str, Any]:
    """For the page: the sentences, and the rows of the heads."""
    return {
        "title": gating_sentence(result),
        "lines": label_sentences(result),
        "heads": result.tables["causal-gates"],
    }
