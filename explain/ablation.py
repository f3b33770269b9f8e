"""Tables of ablations, each difference with an interval and a p-value.   Michel et al. 2019, section 3
(tables 1, 2 and 5).

    one           every head removed alone: ablation/one.{csv,json}
    all-but-one   every layer reduced to its best single head: ablation/all-but-one.{csv,json}

A difference is the ablated model's metric (such as BLEU) minus the unpruned model's: negative where the
head matters. The .csv holds the rows, the .json their fingerprint and summary; pruning/ablation.py keeps the
outputs beside them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from headgates.analysis.batches import sites_of
from headgates.analysis.significance import (
    BOOTSTRAP_SEED,
    LEVEL,
    P_VALUES,
    TEST,
    Scored,
    compare_many,
    half_sample_p_values,
    holm,
)
from headgates.gates import HeadSite
from headgates.gates.headmap import check_kinds
from headgates.pruning.ablation import (
    AblationScores,
    ablation_key,
    main_by_head,
    one_head_masks,
    score_ablations,
)
from headgates.pruning.scores import beam_of, kinds_suffix
from headgates.records.source import Lines, Source
from headgates.records.table import TableRow, cached_table, with_ends

ONE: Final = "one"
ALL_BUT_ONE: Final = "all-but-one"
TEST_SET = "test"  # of the run: files of another test set have its name


def least_resamples(tests: int) -> int:
    """Enough resamples that the smallest possible p-value stays below LEVEL after Holm's adjustment for all
    tests."""
    return max(10_000, 200 * tests)


def table_name(table: str, kinds: Sequence[str] | None, beam: int) -> str:
    """The table's file name, with the kinds unless all are chosen, and the beam unless search is greedy."""
    return "-".join([table, *kinds_suffix(kinds), *([f"beam{beam}"] if beam > 1 else ())])


def ablate(
    table: Literal["one", "all-but-one"],
    source: Source,
    texts: Mapping[str, Lines],
    *,
    kinds: Sequence[str] | None,
    facts: Mapping[str, Any],
    resamples: int | None = None,
    fresh: bool = False,
) -> list[TableRow]:
    """Make a table and write its files, `ablation/<table>`.

    one: every head of the kinds is removed alone; a row for each head, site after site. all-but-one: every
    layer is reduced to its best head, the other layers whole; a row for each layer. The best head has the
    highest validation score, and its test score is reported; the columns `on_test_...` hold the head with
    the highest test score, as in the paper's table 2: selection on the test set, which flatters.

    texts: the lines "valid" and "test" for "all-but-one"; "test" for "one", or another test set, whose files
    carry its name. facts: provenance. resamples: of the bootstrap, by default `least_resamples` of the tests.
    A finished table with the same fingerprint is read, an interrupted one continues after its last whole
    kind. Raises ValueError if a table of that name has another fingerprint, unless `fresh`."""
    alone, split = table == ONE, list(texts)[-1]
    sites = list(sites_of(source.model, kinds))
    ablations = one_head_masks(sites, closed=alone)
    resamples = resamples or least_resamples(len(ablations) if alone else 2 * len(sites))
    file = table if split == TEST_SET else f"{table}-on-{split}"
    name = f"ablation/{table_name(file, kinds, beam_of(source))}"

    def by_text(values: Iterable[Any]) -> Any:
        """One value, or one for each text."""
        named = dict(zip(texts, values, strict=True))
        return named if len(named) > 1 else next(iter(named.values()))

    def make() -> tuple[list[TableRow], dict[str, Any]]:
        found = [
            score_ablations(source, text, ablations, name=name if alone else f"{name}-{split}", fresh=fresh)
            for split, text in texts.items()
        ]
        base = found[-1].base
        rows = (one_rows if alone else all_but_one_rows)(sites, found, resamples)
        summary = {
            "base": by_text(each.base.values for each in found),
            "signatures": base.signatures,
            "changed_share": by_text(float(np.mean(each.changed_share)) for each in found),
            "significant": significance_counts(rows, f"{base.main_name}_difference"),
            **facts,
        }
        if not alone:
            summary |= {
                "on_test": "the columns on_test_...: the head with the highest test score, which is "
                "selection on test (the paper's table 2)",
                f"{base.main_name}_of_every_head": by_text(
                    main_by_head(sites, each).to_json() for each in found
                ),
            }
        return rows, summary

    keys = [ablation_key(source, text, ablations) for text in texts.values()]
    cache_key = {
        **keys[-1],
        "text": by_text(key["text"] for key in keys),
        "kinds": list(check_kinds(kinds)),
        "sentences": by_text(len(text[0]) for text in texts.values()),
        "split": by_text(texts),
        "resamples": resamples,
        "bootstrap_seed": BOOTSTRAP_SEED,
        "significance_test": TEST,
    }
    if source.task.further:  # a table that has more metrics is one without them too
        cache_key["metrics"] = [metric.signature() for metric in source.task.further]
    return cached_table(source.folder, name, cache_key, make, fresh=fresh)


def one_rows(sites: Sequence[HeadSite], scored: Sequence[AblationScores], resamples: int) -> list[TableRow]:
    (found,) = scored
    heads = [site.row(head) for site in sites for head in range(site.heads)]
    compared = compare_many(found.systems, found.base, resamples=resamples)
    adjusted = holm([each[f"{found.base.main_name}_p_value"] for each in compared])
    half_samples = half_sample_p_values(found.systems, found.base)
    return [
        {
            **head,
            **score_columns(system, found.base, each),
            "p_value_holm": p_holm,
            "p_half_samples": p_half,
            "changed_share": share,
        }
        for head, system, each, p_holm, p_half, share in zip(
            heads, found.systems, compared, adjusted, half_samples, found.changed_share, strict=True
        )
    ]


def score_columns(system: Scored, base: Scored, compared: dict[str, Any]) -> TableRow:
    """The metrics of an ablation and their differences from the unpruned model; compared: its entry of
    `compare_many`."""
    main = base.main_name
    row = {main: system.main, f"{main}_difference": compared[f"{main}_difference"]}
    row |= with_ends("difference", compared[f"{main}_difference_ci95"])
    for metric in base.metrics[1:]:
        row |= {
            metric.name: system[metric.name],
            f"{metric.name}_difference": system[metric.name] - base[metric.name],
        }
    return row | {p: compared[f"{main}_{p}"] for p in P_VALUES if f"{main}_{p}" in compared}


def rows_by_kind(rows: Sequence[TableRow]) -> dict[str, list[TableRow]]:
    """All rows, and those of each kind."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return {"all": [*rows]} | {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}


def significance_counts(rows: Sequence[TableRow], difference: str) -> dict[str, Any]:
    """How many rows differ significantly at LEVEL, and how many of those improve: raw and Holm-adjusted, in
    all and by kind. difference: the column of differences in the deciding metric."""
    out: dict[str, Any] = {"level": LEVEL}
    for label, column in (("raw", "p_value"), ("holm", "p_value_holm")):
        counts = {}
        for kind, kind_rows in rows_by_kind(rows).items():
            passed = [row for row in kind_rows if row[column] < LEVEL]
            improve = sum(row[difference] > 0 for row in passed)
            counts[kind] = {"tested": len(kind_rows), "significant": len(passed), "improve": improve}
        out[label] = counts
    return out


def all_but_one_rows(
    sites: Sequence[HeadSite], scored: Sequence[AblationScores], resamples: int
) -> list[TableRow]:
    valid, test = scored
    main = test.base.main_name
    offsets = np.cumsum([0, *(site.heads for site in sites)])[:-1]  # index of each site's first head
    on_valid, on_test = (  # the head that alone leaves the highest score; the first of equals
        [int(row.argmax()) for row in main_by_head(sites, found).values()] for found in scored
    )
    numbers = [*(offsets + on_valid), *(offsets + on_test)]  # of the ablations
    compared = compare_many([test.systems[number] for number in numbers], test.base, resamples=resamples)
    adjusted = holm([each[f"{main}_p_value"] for each in compared[: len(sites)]])
    rows = []
    for i, site in enumerate(sites):
        best, flattered = numbers[i], compared[len(sites) + i]
        rows.append(
            {
                **site.row(on_valid[i]),
                f"valid_{main}": valid.systems[best].main,
                f"valid_{main}_difference": valid.systems[best].main - valid.base.main,
                **score_columns(test.systems[best], test.base, compared[i]),
                "p_value_holm": adjusted[i],
                "on_test_head": on_test[i],
                f"on_test_{main}": test.systems[numbers[len(sites) + i]].main,
                f"on_test_{main}_difference": flattered[f"{main}_difference"],
                "on_test_p_value": flattered[f"{main}_p_value"],
            }
        )
    return rows
