"""Do the heads that matter on one test set matter on another?   Michel et al. 2019, section 3.4.

Every head is removed alone on both; the correlation is that of the two columns of BLEU differences, over all
heads and over each kind's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headgates.explain.ablation import ONE, TEST_SET, ablate, rows_by_kind, table_name
from headgates.pruning.scores import beam_of
from headgates.records.source import Lines, Source
from headgates.records.table import TableRow, write_table


def transfer(
    source: Source,
    test: Lines,
    other: tuple[str, Lines],
    *,
    kinds: Sequence[str] | None,
    facts: Mapping[str, Any],
    resamples: int | None = None,
    fresh: bool = False,
) -> tuple[list[TableRow], dict[str, dict[str, Any]]]:
    """The one-head ablations on the run's test set and on another (its name and lines): the rows (site, kind,
    layer, head, bleu_difference, p_value, p_value_holm; other_...: on the other test set), and by "all" or
    kind how they correlate, see `correlate`.

    Writes `ablation/transfer-<name>.{csv,json}` and both tables "one" of `ablate`; tables that exist already
    are read. Raises ValueError as `ablate` does; `fresh` repeats the ablation of the other test set
    alone."""
    name, text = other
    ours = ablate(ONE, source, {TEST_SET: test}, kinds=kinds, facts=facts, resamples=resamples)
    theirs = ablate(ONE, source, {name: text}, kinds=kinds, facts=facts, resamples=resamples, fresh=fresh)
    columns = (f"{source.task.metrics[0].name}_difference", "p_value", "p_value_holm")
    rows = [
        {column: row[column] for column in ("site", "kind", "layer", "head", *columns)}
        | {f"other_{column}": other_row[column] for column in columns}
        for row, other_row in zip(ours, theirs, strict=True)
    ]
    correlations = correlate_kinds(rows, columns[0])
    path = "ablation/" + table_name(f"transfer-{name}", kinds, beam_of(source))
    write_table(source.folder, f"{path}.csv", rows)
    content = {"test_sets": [TEST_SET, name], "heads": len(rows), "correlations": correlations}
    source.folder.write_json(f"{path}.json", content | dict(facts))
    return rows, correlations


def correlate_kinds(rows: Sequence[TableRow], column: str) -> dict[str, dict[str, Any]]:
    """The correlations of a column between the two test sets, over all rows and over those of each kind."""
    return {
        kind: correlate([row[column] for row in of_kind], [row[f"other_{column}"] for row in of_kind])
        for kind, of_kind in rows_by_kind(rows).items()
    }


def correlate(x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    """heads: how many pairs; pearson and spearman: coefficient and two-sided p-value, each None where there
    is none: of fewer than three pairs, or where all values of one side are equal."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return {"heads": len(x), "pearson": None, "spearman": None}
    # here: it takes a second, and few commands need it
    from scipy import stats  # type: ignore[import-untyped]

    linear, ranked = stats.pearsonr(x, y), stats.spearmanr(x, y)
    return {
        "heads": len(x),
        "pearson": (float(linear.statistic), float(linear.pvalue)),
        "spearman": (float(ranked.statistic), float(ranked.pvalue)),
    }
