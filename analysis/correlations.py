"""What the analyses say together: how scores of heads go with one another, and which roles the runs leave.

Importance is divided by its layer's l2 norm first, as Michel et al. 2019 order heads by it; LRP shares are of a layer already."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]

from analysis.analyses import Found, importance, of
from analysis.roles import Role, families
from analysis.study import Study
from analysis.survival import any_role, survive_longer, survivors
from gates import KINDS, HeadMap, find_sites
from models.progress import Report
from runfolder.related import GateRun
from runfolder.table import Row

BASE = "base"  # the run in which all heads are open


def scores(study: Study, found: Mapping[str, Found]) -> dict[str, HeadMap]:
    """Those of LRP share, confidence and importance that are known."""
    known = {"LRP share": of(found, "lrp", "share"), "confidence": of(found, "confidence", "confidence")}
    raw = importance(study)
    known["importance"] = None if raw is None else raw.select(study.config.kinds).l2_per_layer()
    return {name: head_map for name, head_map in known.items() if head_map is not None}


def correlations(scores: Mapping[str, HeadMap]) -> list[Row]:
    """A row for every two scores and "all" or a kind: first, second, kind, heads, spearman and p_value (two-sided), None where there is
    none: of fewer than three heads, or where one side is all alike."""
    rows = []
    for first, second in combinations(scores, 2):
        common = [site for site in scores[first] if site in scores[second]]
        for kind in ("all", *(kind for kind in KINDS if any(site.kind == kind for site in common))):
            sites = [site for site in common if kind in ("all", site.kind)]
            x, y = (np.concatenate([scores[name][site].numpy() for site in sites]) if sites else np.zeros(0) for name in (first, second))
            rows.append({"first": first, "second": second, "kind": kind, "heads": len(x), **spearman(x, y)})
    return rows


def spearman(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return {"spearman": None, "p_value": None}
    found = stats.spearmanr(x, y)
    return {"spearman": float(found.statistic), "p_value": float(found.pvalue)}


def survival(study: Study, found: Mapping[str, Found], roles: Sequence[Role], report: Report) -> tuple[list[Row], list[Row]]:
    """The rows of analysis/survival.py, the base first, and its tests over the runs with gates, by the roles' families; both empty where
    there is none."""
    has = families(list(roles), found, list(find_sites(study.translator.model)))
    if not study.is_base or not has:
        return [], []
    if not study.gate_runs:
        report("left out: survival is counted over runs with gates; give some on this base too, or --siblings")
        return [], []
    gated = [set(run.open) for run in study.gate_runs]
    common = set.intersection(*gated)
    kinds = [kind for kind in study.config.kinds if any(site.kind == kind for site in common)]
    if not kinds:
        report("left out: survival, for the runs have no kind of attention in common that they gate")
        return [], []
    opens = {name: run.open.select(kinds) for name, run in zip(names(study.gate_runs), study.gate_runs, strict=True)}
    whole = {site: torch.ones(site.heads, dtype=torch.bool) for site in next(iter(opens.values()))}
    rows = survivors({BASE: HeadMap(whole), **opens}, has, kinds=kinds)
    tests = [row for within in ("kind", "layer") for row in survive_longer(opens, any_role(has), within=within, kinds=kinds)]
    return rows, tests


def names(runs: Sequence[GateRun]) -> list[str]:
    """Labels by lambda, of runs that share one their folders' names."""
    labels = [run.label for run in runs]
    return [label if labels.count(label) == 1 else run.name for label, run in zip(labels, runs, strict=True)]
