"""Tables of ablations, each difference with an interval and a p-value.   Michel et al. 2019, section 3
(tables 1, 2 and 5).

    one           every head removed alone: ablation/one.{csv,json}
    all-but-one   every layer reduced to its best single head: ablation/all-but-one.{csv,json}

A difference is the ablated model's metric (such as BLEU) minus the unpruned model's: negative where the
head matters. The .csv holds the rows, the .json their fingerprint and summary, the -outputs.json what each
ablation makes of the text (ablated_stats.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from headgates.analysis.significance import (
    LEVEL,
    P_VALUES,
    SEED,
    TEST,
    Scored,
    compare_many,
    half_sample_p_values,
    holm,
)
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.gates.headmap import check_kinds
from headgates.models.progress import Report
from headgates.workbench.ablated_stats import AblationScores, fingerprint, score_ablations
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.scores import beam_of, kinds_suffix
from headgates.workbench.source import Lines
from headgates.workbench.table import Row, cached_table


def least_resamples(tests: int) -> int:
    """Enough resamples that the smallest possible p-value stays below LEVEL after Holm's adjustment for all
    tests."""
    return max(10_000, 200 * tests)


def chosen_sites(model: nn.Module, kinds: Sequence[str] | None) -> list[HeadSite]:
    """The model's sites of these kinds. Raises ValueError if it has none."""
    model_sites, chosen = sorted(find_sites(model)), check_kinds(kinds)
    sites = [site for site in model_sites if site.kind in chosen]
    if not sites:
        raise ValueError(
            f"the model has no heads of kind {', '.join(chosen)}; it has "
            f"{', '.join(site.name for site in model_sites)}"
        )
    return sites


def table_name(table: str, kinds: Sequence[str] | None, beam: int) -> str:
    """The table's file name, with the kinds unless all are chosen, and the beam unless search is greedy."""
    return "-".join([table, *kinds_suffix(kinds), *([f"beam{beam}"] if beam > 1 else ())])


# ---------------------------------------------------------------- one head


def ablate_one(
    dense: DenseModel,
    *,
    kinds: Sequence[str] | None,
    resamples: int | None = None,
    also: tuple[str, Lines] | None = None,
    fresh: bool = False,
    report: Report = print,
) -> list[Row]:
    """Remove every head of the kinds alone. Returns a row for each head, site after site, and writes the
    files `ablation/one`.

    The text is the test set, or `also`: name and lines of another test set, whose files carry its name.
    resamples: of the bootstrap, by default `least_resamples` of the heads. A finished table with the same
    fingerprint is read, an interrupted one continues after its last whole kind. Raises ValueError if a table
    of that name has another
    fingerprint, unless `fresh`."""
    source = dense.source
    sites = chosen_sites(source.predictor.model, kinds)
    ablations = one_head_masks(sites, closed=True)
    resamples = resamples or least_resamples(len(ablations))
    name = "ablation/" + table_name("one" if also is None else f"one-on-{also[0]}", kinds, beam_of(source))
    text = dense.test if also is None else also[1]

    def make() -> tuple[list[Row], dict[str, Any]]:
        found = score_ablations(source, text, ablations, name=name, fresh=fresh, report=report)
        rows = one_rows(sites, found, resamples)
        summary = {
            "base": found.base.values,
            "signatures": found.base.signatures,
            "changed_share": float(np.mean(found.changed_share)),
            "significant": significance_counts(rows, f"{found.base.main_name}_difference"),
            **dense.facts,
        }
        return rows, summary

    cache_key = {
        **fingerprint(source, text, ablations),
        "kinds": list(check_kinds(kinds)),
        "sentences": len(text[0]),
        "split": "test" if also is None else also[0],
        "resamples": resamples,
        "bootstrap_seed": SEED,
        "significance_test": TEST,
    }
    return cached_table(dense.folder, name, cache_key, make, fresh=fresh, report=report)


def one_head_mask(site: HeadSite, head: int, *, closed: bool) -> HeadMap:
    """The mask that closes only this head of the site, or (closed=False) all its others."""
    return HeadMap({site: (torch.arange(site.heads) == head) == closed})


def one_head_masks(sites: Sequence[HeadSite], *, closed: bool) -> list[HeadMap]:
    """The `one_head_mask` of every head, site after site."""
    return [one_head_mask(site, head, closed=closed) for site in sites for head in range(site.heads)]


def one_rows(sites: Sequence[HeadSite], found: AblationScores, resamples: int) -> list[Row]:
    heads = [(site, head) for site in sites for head in range(site.heads)]
    compared = compare_many(found.systems, found.base, resamples=resamples)
    adjusted = holm([each[f"{found.base.main_name}_p_value"] for each in compared])
    half_samples = half_sample_p_values(found.systems, found.base)
    return [
        {
            **site.row(head),
            **score_columns(system, found.base, each),
            "p_value_holm": p_holm,
            "p_half_samples": p_half,
            "changed_share": share,
        }
        for (site, head), system, each, p_holm, p_half, share in zip(
            heads, found.systems, compared, adjusted, half_samples, found.changed_share, strict=True
        )
    ]


def score_columns(system: Scored, base: Scored, compared: dict[str, Any]) -> Row:
    """The metrics of an ablation and their differences from the unpruned model; compared: its entry of
    `compare_many`."""
    main = base.main_name
    low, high = compared[f"{main}_difference_ci95"]
    row = {
        main: system.main,
        f"{main}_difference": compared[f"{main}_difference"],
        "difference_low": low,
        "difference_high": high,
    }
    for metric in base.metrics[1:]:
        row |= {
            metric.name: system[metric.name],
            f"{metric.name}_difference": system[metric.name] - base[metric.name],
        }
    return row | {p: compared[f"{main}_{p}"] for p in P_VALUES if f"{main}_{p}" in compared}


def significance_counts(rows: Sequence[Row], difference: str) -> dict[str, Any]:
    """How many rows differ significantly at LEVEL, and how many of those improve: raw and Holm-adjusted, in
    all and by kind. difference: the column of differences in the deciding metric."""
    out: dict[str, Any] = {"level": LEVEL}
    for label, column in (("raw", "p_value"), ("holm", "p_value_holm")):
        counts = {}
        for kind in ("all", *dict.fromkeys(row["kind"] for row in rows)):
            kind_rows = [row for row in rows if kind in ("all", row["kind"])]
            passed = [row for row in kind_rows if row[column] < LEVEL]
            improve = sum(row[difference] > 0 for row in passed)
            counts[kind] = {"tested": len(kind_rows), "significant": len(passed), "improve": improve}
        out[label] = counts
    return out


# ---------------------------------------------------------------- all heads of a layer but one


def ablate_all_but_one(
    dense: DenseModel,
    *,
    kinds: Sequence[str] | None,
    resamples: int | None = None,
    fresh: bool = False,
    report: Report = print,
) -> list[Row]:
    """Reduce every layer of the kinds to its best head, the other layers whole. Returns a row for each layer,
    and writes `ablation/all-but-one`.

    The best head has the highest validation score, and its test score is reported. The columns `on_test_...`
    hold the head with the highest test score, as in the paper's table 2: selection on the test set, which
    flatters. resamples, files and
    errors are as in `ablate_one`."""
    source = dense.source
    sites = chosen_sites(source.predictor.model, kinds)
    ablations = one_head_masks(sites, closed=False)
    resamples = resamples or least_resamples(2 * len(sites))
    name = "ablation/" + table_name("all-but-one", kinds, beam_of(source))
    texts = {"valid": dense.valid, "test": dense.test}

    def make() -> tuple[list[Row], dict[str, Any]]:
        found = {
            split: score_ablations(
                source, text, ablations, name=f"{name}-{split}", fresh=fresh, report=report
            )
            for split, text in texts.items()
        }
        rows = all_but_one_rows(sites, found["valid"], found["test"], resamples)
        main = found["test"].base.main_name
        summary = {
            "on_test": "the columns on_test_...: the head with the highest test score, which is selection "
            "on test (the paper's table 2)",
            "base": {split: each.base.values for split, each in found.items()},
            "signatures": found["test"].base.signatures,
            "changed_share": {split: float(np.mean(each.changed_share)) for split, each in found.items()},
            "significant": significance_counts(rows, f"{main}_difference"),
            f"{main}_of_every_head": {
                split: main_by_head(sites, each).to_json() for split, each in found.items()
            },
            **dense.facts,
        }
        return rows, summary

    both = {split: fingerprint(source, text, ablations) for split, text in texts.items()}
    cache_key = {
        **both["test"],
        "valid_text": both["valid"]["text"],
        "kinds": list(check_kinds(kinds)),
        "sentences": {split: len(text[0]) for split, text in texts.items()},
        "resamples": resamples,
        "bootstrap_seed": SEED,
        "significance_test": TEST,
    }
    return cached_table(dense.folder, name, cache_key, make, fresh=fresh, report=report)


def main_by_head(sites: Sequence[HeadSite], found: AblationScores) -> HeadMap:
    """The deciding metric of every head's ablation."""
    values = torch.tensor([system.main for system in found.systems], dtype=torch.float64)
    return HeadMap(dict(zip(sites, values.split([site.heads for site in sites]), strict=True)))


def all_but_one_rows(
    sites: Sequence[HeadSite], valid: AblationScores, test: AblationScores, resamples: int
) -> list[Row]:
    main = test.base.main_name
    first = np.cumsum([0, *(site.heads for site in sites)])[:-1]  # index of each site's first head
    best_on_valid, best_on_test = (  # the head that alone leaves the highest score; the first of equals
        [int(row.argmax()) for row in main_by_head(sites, found).values()] for found in (valid, test)
    )
    on_valid, on_test = (  # indices of the ablations
        (first + best).tolist() for best in (best_on_valid, best_on_test)
    )
    compared = compare_many(
        [test.systems[number] for number in on_valid + on_test], test.base, resamples=resamples
    )
    adjusted = holm([each[f"{main}_p_value"] for each in compared[: len(sites)]])
    rows = []
    for i, site in enumerate(sites):
        flattered = compared[len(sites) + i]
        rows.append(
            {
                **site.row(best_on_valid[i]),
                f"valid_{main}": valid.systems[on_valid[i]].main,
                f"valid_{main}_difference": valid.systems[on_valid[i]].main - valid.base.main,
                **score_columns(test.systems[on_valid[i]], test.base, compared[i]),
                "p_value_holm": adjusted[i],
                "on_test_head": best_on_test[i],
                f"on_test_{main}": test.systems[on_test[i]].main,
                f"on_test_{main}_difference": flattered[f"{main}_difference"],
                "on_test_p_value": flattered[f"{main}_p_value"],
            }
        )
    return rows
