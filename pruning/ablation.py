"""Tables of ablations, each difference with an interval and a p-value.   Michel et al. 2019, section 3
(tables 1, 2 and 5).

    one           every head removed alone: ablation/one.{csv,json}
    all-but-one   every layer reduced to its best single head: ablation/all-but-one.{csv,json}

A difference is the ablated model's metric (such as BLEU) minus the unpruned model's: negative where the
head matters. The .csv holds the rows, the .json their fingerprint and summary. The outputs of the ablations
are written after every group of them, so that a repeated command continues after the last whole group:

    NAME-outputs.json
        cache_key    what the outputs depend on
        drafts       the outputs of the unpruned model
        changed      for every ablation [number of the line, output] of the lines that change; null where
                     it is not finished
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

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
    score,
    score_changed,
)
from headgates.configs.cli import config_hash
from headgates.data.parallel import digest_lines
from headgates.data.ranks import first, gathered, share
from headgates.gates import HeadMap, HeadSite, attach, detach, find_sites
from headgates.gates.headmap import check_kinds
from headgates.models.ablated_search import Ablated, ablated_translations
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.pruning.scores import beam_of, kinds_suffix
from headgates.pruning.unpruned_model import UnprunedModel
from headgates.records.source import Lines, Source, prediction_settings
from headgates.records.table import Row, cached_table, with_ends

# ---------------------------------------------------------------- outputs


@dataclass(frozen=True)
class AblationScores:
    """The scores of the unpruned model and of every ablation on one text."""

    base: Scored
    systems: list[Scored]  # one for each ablation
    changed_share: list[float]  # for every ablation, the share of lines that it translates differently


def ablation_key(source: Source, text: Lines, ablations: Sequence[HeadMap]) -> dict[str, Any]:
    """Everything the outputs depend on: weights, text, masks and search settings."""
    masks = config_hash({"closed": [closed.to_json() for closed in ablations]})
    key = {"weights": source.weights, "text": digest_lines(*text), "masks": masks}
    return key | prediction_settings(source)


def score_ablations(
    source: Source,
    text: Lines,
    ablations: Sequence[HeadMap],
    *,
    name: str,
    fresh: bool = False,
) -> AblationScores:
    """Score the outputs under every ablation (each of one site, listed site after site) and keep them in
    `name`-outputs.json.

    Ablations that the file already holds are not repeated. Raises ValueError if the file has another
    fingerprint, unless `fresh`."""
    sources, references = text
    folder, file, cache_key = source.folder, f"{name}-outputs.json", ablation_key(source, text, ablations)
    kept = first(lambda: None if fresh else folder.stored(file, cache_key)) or {}
    drafts, changed = kept.get("drafts"), kept.get("changed", [None] * len(ablations))
    # those of a kind are translated together, or of a site where each needs a beam search of its own; the
    # unpruned model translates the text once for each group, which costs little beside its ablations
    sites = [next(iter(closed)) for closed in ablations]
    labels = [site.kind if beam_of(source) == 1 else site.name for site in sites]
    for label, group in groupby(range(len(labels)), key=labels.__getitem__):
        numbers = list(group)
        if all(changed[number] is not None for number in numbers):
            continue
        say(f"{name}: {label}, {len(numbers)} ablations of {len(sources)} sentences")
        found = ablated_outputs(source, sources, [ablations[number] for number in numbers])
        if drafts not in (None, found.drafts):
            raise ValueError(
                f"the unpruned model translates differently from when {folder / file} was begun (another "
                "machine, or other packages?); --fresh begins anew"
            )
        drafts = found.drafts
        for number, lines in zip(numbers, found.changed, strict=True):
            changed[number] = list(lines.items())
        folder.write_json(file, {"cache_key": cache_key, "drafts": drafts, "changed": changed})
    assert drafts is not None, "there is at least one ablation"
    base = score(drafts, references, source.task.metrics)
    systems = [score_changed(base, drafts, dict(lines), references) for lines in changed]
    return AblationScores(base, systems, [len(lines) / len(sources) for lines in changed])


def ablated_outputs(source: Source, lines: Sequence[str], ablations: Sequence[HeadMap]) -> Ablated:
    """Outputs of the unpruned model and, for every ablation, the lines that change; translation is one job
    for all ablations."""
    if isinstance(source.predictor, Translator):
        predictor, mine = source.predictor, list(share(lines))
        found = Ablated([], [{} for _ in ablations], decoded=0)
        if mine:
            found = ablated_translations(predictor, mine, ablations, beam=predictor.search.beam)
        return joined(gathered(found), len(lines))
    drafts, changed = source.task.outputs(source.predictor, lines), []
    bank = attach(source.model, gate="mask")
    try:
        for closed in ablations:
            bank.assign({site: torch.ones(site.heads) for site in bank.sites} | dict(~closed))
            outputs = source.task.outputs(source.predictor, lines)
            changed.append({number: line for number, line in enumerate(outputs) if line != drafts[number]})
    finally:
        detach(source.model)
    return Ablated(drafts, changed, decoded=sum(map(len, changed)))


def joined(parts: Sequence[Ablated], lines: int) -> Ablated:
    """The outputs of all ranks, of which each had its share of the lines, in turns."""
    ranks = len(parts)
    drafts = [parts[line % ranks].drafts[line // ranks] for line in range(lines)]
    changed = [
        {line * ranks + rank: text for rank, each in enumerate(of_ranks) for line, text in each.items()}
        for of_ranks in zip(*(part.changed for part in parts), strict=True)
    ]
    return Ablated(drafts, changed, decoded=sum(part.decoded for part in parts))


# ---------------------------------------------------------------- tables


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


def ablate(
    table: Literal["one", "all-but-one"],
    unpruned: UnprunedModel,
    *,
    kinds: Sequence[str] | None,
    resamples: int | None = None,
    also: tuple[str, Lines] | None = None,
    fresh: bool = False,
) -> list[Row]:
    """Make a table and write its files, `ablation/<table>`.

    one: every head of the kinds is removed alone; a row for each head, site after site. all-but-one: every
    layer is reduced to its best head, the other layers whole; a row for each layer. The best head has the
    highest validation score, and its test score is reported; the columns `on_test_...` hold the head with
    the highest test score, as in the paper's table 2: selection on the test set, which flatters.

    also: name and lines of another test set for "one", whose files carry its name. resamples: of the
    bootstrap, by default `least_resamples` of the tests. A finished table with the same fingerprint is read,
    an interrupted one continues after its last whole kind. Raises ValueError if a table of that name has
    another fingerprint, unless `fresh`."""
    alone = table == "one"
    sites = chosen_sites(unpruned.model, kinds)
    ablations = one_head_masks(sites, closed=alone)
    resamples = resamples or least_resamples(len(ablations) if alone else 2 * len(sites))
    texts = {"test": unpruned.test} if alone else {"valid": unpruned.valid, "test": unpruned.test}
    file = table if also is None else f"{table}-on-{also[0]}"
    if also is not None:
        texts = dict([also])
    name = f"ablation/{table_name(file, kinds, beam_of(unpruned))}"

    def by_text(values: Iterable[Any]) -> Any:
        """One value, or one for each text."""
        named = dict(zip(texts, values, strict=True))
        return named if len(named) > 1 else next(iter(named.values()))

    def make() -> tuple[list[Row], dict[str, Any]]:
        found = [
            score_ablations(unpruned, text, ablations, name=name if alone else f"{name}-{split}", fresh=fresh)
            for split, text in texts.items()
        ]
        base = found[-1].base
        rows = (one_rows if alone else all_but_one_rows)(sites, found, resamples)
        summary = {
            "base": by_text(each.base.values for each in found),
            "signatures": base.signatures,
            "changed_share": by_text(float(np.mean(each.changed_share)) for each in found),
            "significant": significance_counts(rows, f"{base.main_name}_difference"),
            **unpruned.facts,
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

    keys = [ablation_key(unpruned, text, ablations) for text in texts.values()]
    cache_key = {
        **keys[-1],
        "text": by_text(key["text"] for key in keys),
        "kinds": list(check_kinds(kinds)),
        "sentences": by_text(len(text[0]) for text in texts.values()),
        "split": by_text(texts),
        "resamples": resamples,
        "bootstrap_seed": SEED,
        "significance_test": TEST,
    }
    return cached_table(unpruned.folder, name, cache_key, make, fresh=fresh)


def one_head_masks(sites: Sequence[HeadSite], *, closed: bool) -> list[HeadMap]:
    """For every head, site after site, the mask that closes it alone, or (closed=False) all others of its
    site."""
    return [
        HeadMap({site: (torch.arange(site.heads) == head) == closed})
        for site in sites
        for head in range(site.heads)
    ]


def one_rows(sites: Sequence[HeadSite], scored: Sequence[AblationScores], resamples: int) -> list[Row]:
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


def score_columns(system: Scored, base: Scored, compared: dict[str, Any]) -> Row:
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


def by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All rows, and those of each kind."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return {"all": [*rows]} | {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}


def significance_counts(rows: Sequence[Row], difference: str) -> dict[str, Any]:
    """How many rows differ significantly at LEVEL, and how many of those improve: raw and Holm-adjusted, in
    all and by kind. difference: the column of differences in the deciding metric."""
    out: dict[str, Any] = {"level": LEVEL}
    for label, column in (("raw", "p_value"), ("holm", "p_value_holm")):
        counts = {}
        for kind, kind_rows in by_kind(rows).items():
            passed = [row for row in kind_rows if row[column] < LEVEL]
            improve = sum(row[difference] > 0 for row in passed)
            counts[kind] = {"tested": len(kind_rows), "significant": len(passed), "improve": improve}
        out[label] = counts
    return out


def main_by_head(sites: Sequence[HeadSite], found: AblationScores) -> HeadMap:
    """The deciding metric of every head's ablation."""
    values = torch.tensor([system.main for system in found.systems], dtype=torch.float64)
    return HeadMap(dict(zip(sites, values.split([site.heads for site in sites]), strict=True)))


def all_but_one_rows(
    sites: Sequence[HeadSite], scored: Sequence[AblationScores], resamples: int
) -> list[Row]:
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


# ---------------------------------------------------------------- as a score


def ablation_score(
    model: Any,
    batches: Iterable[Any] = (),
    *,
    source: Source,
    valid: Lines,
    kinds: Sequence[str] | None,
    file: str,
    fresh: bool,
) -> HeadMap:
    """The validation metric (such as BLEU) of the unpruned model minus that without the head: the dashed
    lines of Michel et al. 2019, figure 3; negative where the model is better without it. The batches are not
    read; outputs are kept in `file`-outputs.json of the run."""
    del batches
    sites = chosen_sites(model, kinds)
    alone = one_head_masks(sites, closed=True)
    scored = score_ablations(source, valid, alone, name=file, fresh=fresh)
    return main_by_head(sites, scored).map(lambda row: scored.base.main - row)
