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

from itertools import product

import torch

from headgates.analysis.causal_gating import CAUSAL_ROLES, gates_of, is_labelled, means, spreads
from headgates.analysis.results import AnalysisResult
from headgates.analysis.scores.exact_effects import loss_rises
from headgates.analysis.without_heads import heads_at
from headgates.data import ranks
from headgates.gates import HeadMap
from headgates.pruning.scores import ScoreRequest, score_parts


def causal_gating(request: ScoreRequest, exact: HeadMap) -> AnalysisResult:
    """The tables of the heads in `exact`, the rise of the loss without each; the gates are those of the
    score's file. Letters: S seeds, N heads."""
    maps = score_parts(next(iter(CAUSAL_ROLES)), request)
    fits = gates_of({name: head_map.select(exact.kinds) for name, head_map in maps.items()})
    mean, losses = means(fits), exact.flat()
    columns = {
        f"{name}{end}": each[name].flat().tolist()
        for name, (end, each) in product(CAUSAL_ROLES, (("", mean), ("_spread", spreads(fits))))
    }
    by_mean = {name: is_labelled(mean, name).flat() for name in CAUSAL_ROLES}  # (N,)
    in_seeds = {  # (S, N)
        name: torch.stack([is_labelled(fit.quantities, name).flat() for fit in fits]) for name in CAUSAL_ROLES
    }
    heads = []
    for i, (site, head) in enumerate(heads_at(exact)):
        (label,) = (name for name in CAUSAL_ROLES if by_mean[name][i])
        alike = int(in_seeds[label][:, i].sum())
        heads.append(
            site.row(head)
            | {column: values[i] for column, values in columns.items()}
            | {"label": CAUSAL_ROLES[label], "seeds_alike": alike, "loss": float(losses[i])}
        )
    sets = [each for name in CAUSAL_ROLES for each in (by_mean[name], in_seeds[name].all(0))]
    rises = loss_rises(
        request.source.model,
        request.source.train_batches(request.sentences, request.seed),
        [exact.like(each) for each in sets],
        loss=request.source.task.loss,
        ranks=ranks,
    ).tolist()
    labels = []
    for place, (name, label) in enumerate(CAUSAL_ROLES.items()):
        counts, (mostly, always) = in_seeds[name].sum(1), sets[2 * place : 2 * place + 2]
        labels.append(
            {
                "label": label,
                "by_the_mean": int(mostly.sum()),
                "in_one_seed": float(counts.double().mean()),
                "fewest": int(counts.min()),
                "most": int(counts.max()),
                "in_every_seed": int(always.sum()),
                "in_any_seed": int(in_seeds[name].any(0).sum()),
                "together": rises[2 * place],
                "singly": float(losses[mostly].sum()),
                "together_every": rises[2 * place + 1],
                "singly_every": float(losses[always].sum()),
            }
        )
    facts = {"seeds": len(fits), "labels_kept": sum(row["in_every_seed"] for row in labels)}
    return AnalysisResult({}, facts, {"causal-gates": heads, "causal-labels": labels})
