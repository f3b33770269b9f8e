"""What causal gates say of each head (analysis/causal_gating.py), beside what closing it alone does, and what
closing all heads of a label together does.

Columns of the table `causal-gates`, a row for each head, quantities in (0, 1):

    site, kind, layer, head
    facilitation, interference, irrelevance      the mean over seeds; with _spread the standard deviation
    label, seeds_alike                           by the largest mean; in how many seeds it is the largest too
    loss                                         what closing the head alone adds, exact, in nats a sentence

Columns of `causal-labels`, a row for each label: how many heads have it by the mean, in one seed (mean,
fewest, most), in every seed and in any; and what closing those by the mean, and those of every seed, adds
together (`together`) and as the sum of their single effects (`singly`).
"""

from typing import Any

import torch

from headgates.analysis.causal_gating import CAUSAL_ROLES, gates_of, is_labelled, means, spreads
from headgates.analysis.results import AnalysisResult
from headgates.analysis.scores.exact_effects import loss_rises
from headgates.data import ranks
from headgates.gates import HeadMap
from headgates.pruning.scores import ScoreRequest, score_parts
from headgates.records.table import TableRow


def causal_gating(request: ScoreRequest, exact: HeadMap) -> AnalysisResult:
    """The tables of the heads in `exact`, the rise of the loss without each; the gates are those of the
    score's file."""
    maps = score_parts(next(iter(CAUSAL_ROLES)), request)
    fits = gates_of({name: head_map.select(exact.kinds) for name, head_map in maps.items()})
    mean, spread = means(fits), spreads(fits)
    by_mean = {name: is_labelled(mean, name) for name in CAUSAL_ROLES}
    by_seed = {name: [is_labelled(fit.quantities, name) for fit in fits] for name in CAUSAL_ROLES}
    in_seeds = {name: torch.stack([each.flat() for each in by_seed[name]]) for name in CAUSAL_ROLES}  # (S, N)
    alike = {name: exact.like(in_seeds[name].sum(0)) for name in CAUSAL_ROLES}
    rows: list[TableRow] = []
    for site, losses in exact.items():
        for head in range(site.heads):
            (label,) = (name for name in CAUSAL_ROLES if by_mean[name][site][head])
            numbers = {
                f"{name}{end}": float(each[name][site][head])
                for name in CAUSAL_ROLES
                for end, each in (("", mean), ("_spread", spread))
            }
            seeds = int(alike[label][site][head])
            rows.append(
                site.row(head)
                | numbers
                | {"label": CAUSAL_ROLES[label], "seeds_alike": seeds, "loss": float(losses[head])}
            )
    chosen = {
        (name, which): each
        for name in CAUSAL_ROLES
        for which, each in (("mean", by_mean[name]), ("every", exact.like(in_seeds[name].all(0))))
        if each.count()
    }
    rises = loss_rises(
        request.source.model,
        request.source.train_batches(request.sentences, request.seed),
        list(chosen.values()),
        loss=request.loss,
        ranks=ranks,
    )
    together = dict(zip(chosen, rises.tolist(), strict=True))
    labels = []
    for name, label in CAUSAL_ROLES.items():
        counts = in_seeds[name].sum(1).tolist()
        row: TableRow = {"label": label, "by_the_mean": by_mean[name].count()}
        row |= {"in_one_seed": sum(counts) / len(counts), "fewest": min(counts), "most": max(counts)}
        row |= {
            "in_every_seed": int(in_seeds[name].all(0).sum()),
            "in_any_seed": int(in_seeds[name].any(0).sum()),
        }
        for which, end in (("mean", ""), ("every", "_every")):
            closed = chosen.get((name, which))
            row[f"together{end}"] = together.get((name, which), 0.0)
            row[f"singly{end}"] = 0.0 if closed is None else float(exact.flat()[closed.flat()].sum())
        labels.append(row)
    facts: dict[str, Any] = {"seeds": len(fits), "labels_kept": sum(row["in_every_seed"] for row in labels)}
    return AnalysisResult({}, facts, {"causal-gates": rows, "causal-labels": labels})
