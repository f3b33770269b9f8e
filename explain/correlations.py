"""How the scores of heads correlate with one another, and which roles survive pruning.

Importance is divided by its layer's l2 norm first, as Michel et al. 2019 order heads by it; LRP shares are
shares of a layer already."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch

from headgates.analysis.results import AnalysisResult, head_map_of
from headgates.analysis.roles import Role, families, families_asked
from headgates.analysis.survival import any_role, survive_longer, survivors
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import base_score
from headgates.explain.transfer import correlate
from headgates.gates import HeadMap, find_sites
from headgates.records.related import MadeRun
from headgates.records.table import TableRow

BASE_LABEL = "base"  # of the base among the runs: there all heads are open


def known_scores(analysed: AnalysedModel, results: Mapping[str, AnalysisResult]) -> dict[str, HeadMap]:
    """LRP share, confidence, importance and what closing the head alone adds to the loss, by these names;
    those that are not known are left out."""
    importance, loss = base_score(analysed, "importance"), base_score(analysed, "loss")
    scores = {
        "LRP share": head_map_of(results, "lrp", "share"),
        "confidence": head_map_of(results, "confidence", "confidence"),
        "importance": importance and importance.select(analysed.config.attention).l2_per_layer(),
        "loss without it": loss and loss.select(analysed.config.attention),
    }
    return {name: head_map for name, head_map in scores.items() if head_map is not None}


def correlation_rows(scores: Mapping[str, HeadMap]) -> list[TableRow]:
    """A row for every two scores and "all" or a kind: first, second, kind, heads, spearman (rho, in [-1, 1])
    and p_value (two-sided); none for fewer than three heads, and where all heads have the same score."""
    rows = []
    for first, second in combinations(scores, 2):
        both = scores[first].keys() & scores[second].keys()
        one, other = (HeadMap({site: scores[name][site] for site in both}) for name in (first, second))
        for kind in ("all", *one.kinds):
            x, y = (each.select([kind]).flat().tolist() for each in (one, other))
            if (found := correlate(x, y)["spearman"]) is not None:
                row = {"first": first, "second": second, "kind": kind, "heads": len(x)}
                rows.append(row | {"spearman": found[0], "p_value": found[1]})
    return rows


def survival_rows(
    analysed: AnalysedModel, results: Mapping[str, AnalysisResult], roles: Sequence[Role]
) -> tuple[list[TableRow], list[TableRow]]:
    """The rows of `survivors`, the base first, and those of `survive_longer`, over the runs that were made of
    the base and by the roles' families.

    Both are empty for any system but the base, and where no role was looked for or no run is given."""
    asked = {site for sites in families_asked(results).values() for site in sites}  # syntax: of the encoder
    heads_with_role = families(
        roles, results, [site for site in find_sites(analysed.predictor.model) if site in asked]
    )
    if not analysed.is_base or not heads_with_role:
        return [], []
    runs = [run for run in analysed.made_runs if run.gated.select(analysed.config.attention)]
    looked_at = {site.kind for site in asked}.intersection(*(run.recipe.kinds for run in runs))
    kinds = [kind for kind in analysed.config.attention if kind in looked_at]
    if not runs or not kinds:
        analysed.report(
            "left out: survival is counted over heads that every run could close; give runs that prune this "
            "base, or --siblings"
        )
        return [], []
    open_heads = {label: run.gated.select(kinds) for label, run in zip(run_labels(runs), runs, strict=True)}
    all_open = next(iter(open_heads.values())).map(torch.ones_like)
    rows = survivors({BASE_LABEL: all_open, **open_heads}, heads_with_role, kinds=kinds)
    specialised = any_role(
        {name: heads for name, heads in heads_with_role.items() if name != "aligned"}
    )  # which is ours, not the paper's
    return rows, [
        row
        for within in ("kind", "layer")
        for row in survive_longer(open_heads, specialised, within=within, kinds=kinds)
        if row["p_value"] is not None  # there are heads with a role, and others
    ]


def run_labels(runs: Sequence[MadeRun]) -> list[str]:
    """What each run is called: what chose its heads and how many stay, or its folder's name where that is not
    one run's alone."""
    labels = [f"{run.recipe.label}, {run.recipe.budget.words}" for run in runs]
    return [label if labels.count(label) == 1 else run.name for label, run in zip(labels, runs, strict=True)]
