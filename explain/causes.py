"""The exactness card: every score of pruning/choosers.py, and integrated gradients with more points, against
what closing each head alone does to the loss, and to the metric where `analyze.py --ablate one` has measured
that.

All read the same training pairs. Columns of the table `causes`, whose first row is the exact loss:

    approximation
    spearman, sign, top_quarter                     with the rise of the loss
    spearman_bleu, sign_bleu, top_quarter_bleu      with the fall of the metric, by its name, on the test set
    seconds

Scores are turned so that the lowest closes first. sign: the share of heads whose sign is that of the exact
effect, of scores that have signs. top_quarter: the share of the quarter of heads that cost most which the
score puts there too. Tables of causal gates lie beside it (causal_gating.py).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headgates.analysis.interactions import interactions
from headgates.analysis.results import AnalysisResult
from headgates.analysis.scores.integrated import POINTS, integrated
from headgates.analysis.without_heads import heads_at
from headgates.data import ranks
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.causal_gating import causal_gating
from headgates.explain.transfer import correlate
from headgates.gates import HeadMap
from headgates.gates.headmap import Head
from headgates.pruning.choosers import SCORES
from headgates.pruning.scores import ScoreRequest, head_scores, scoring_seconds
from headgates.records.table import TableRow, read_table

EXACT = "loss"  # its line in SCORES
MORE_POINTS = 20
SCORE_LABELS = {"importance": "importance, |.|", "integrated": f"integrated, {POINTS} points"}


@dataclass(frozen=True)
class Effects:
    """A number for each head by one score, and how long it took, None where that is not known. signed: as in
    `Score`."""

    name: str
    values: HeadMap
    seconds: float | None
    signed: bool = False


def causes(analysed: AnalysedModel) -> AnalysisResult:
    """The card and the interactions of the base's heads; scores are kept in the run's scores/."""
    config, source = analysed.config, analysed.source
    # all read the same pairs, also where all are asked for: 0 would be each score's own number
    sentences = config.causes_sentences or source.train_sentences or len(source.corpus.train)
    request = ScoreRequest(source, sentences=sentences, fresh=config.fresh)
    exact = scored_effects(EXACT, request, config.attention)
    found = [exact, *approximations(analysed, request)]
    removed = metric_effects(analysed, exact.values)
    metric = source.task.metrics[0].name
    rows = [card_row(each, exact, removed, metric) for each in found]
    heads = sorted(heads_at(exact.values), key=lambda head: -value(exact.values, head))
    heads = heads[: config.pair_heads or None]
    begin = time.perf_counter()
    analysed.report(f"causes: {len(heads) * (len(heads) - 1) // 2} pairs of heads")
    pairs = interactions(
        source.model,
        list(source.train_batches(sentences)),
        heads,
        exact.values,
        loss=source.task.loss,
        ranks=ranks,
    )
    facts = {
        "sentences": source.sampled(sentences) or min(sentences, len(source.corpus.train)),
        "metric_known": removed is not None,
        "heads_paired": len(heads),
        "seconds_of_pairs": time.perf_counter() - begin,
    }
    maps = {each.name: each.values for each in found}
    gating = causal_gating(replace(request, fresh=False), exact.values)  # whose file is among them
    tables = {"causes": rows, "interactions": pairs, **gating.tables}
    return AnalysisResult(maps, facts | gating.facts, tables)


def approximations(analysed: AnalysedModel, request: ScoreRequest) -> Iterator[Effects]:
    """Every score that costs no pass for each head, on the pairs of the request."""
    kinds, made = analysed.config.attention, set[str]()
    for name, score in SCORES.items():
        another = score.family and not score.part  # an order by another's numbers
        if another or score.by_chance or score.measures_outputs or name == EXACT:
            continue
        own = replace(request, fresh=request.fresh and (score.family or name) not in made)
        made.add(score.family or name)  # parts of one file are made once
        try:
            found = scored_effects(name, own, kinds)
        except ValueError as error:  # such as a score that this model has not
            analysed.report(f"causes: {name} left out: {error}")
            continue
        yield found
        if score.l2:  # as heads are ordered by it
            normalised = found.values.l2_per_layer()
            yield Effects(f"{name}, l2 per layer", normalised, found.seconds)
        if name == "integrated":
            begin, source = time.perf_counter(), request.source
            batches = source.train_batches(request.sentences, request.seed)
            more = integrated(source.model, batches, points=MORE_POINTS, loss=source.task.loss, ranks=ranks)
            seconds = time.perf_counter() - begin
            yield Effects(f"integrated, {MORE_POINTS} points", more.select(kinds), seconds, signed=True)


def scored_effects(name: str, request: ScoreRequest, kinds: list[str]) -> Effects:
    score = SCORES[name]
    values = head_scores(name, request).select(kinds).map(lambda row: score.sign * row)
    seconds = scoring_seconds(name, request) or None  # 0 where none were kept
    label = SCORE_LABELS.get(name, name + ", highest first" * (score.sign < 0))
    return Effects(label, values, seconds, score.signed)


def metric_effects(analysed: AnalysedModel, like: HeadMap) -> HeadMap | None:
    """By how much the test metric falls without each head, of ablation/one.csv; None where that is not there
    or lacks a head."""
    if not (analysed.base / "ablation/one.csv").is_file():
        return None
    column = f"{analysed.source.task.metrics[0].name}_difference"
    rows = read_table(analysed.base, "ablation/one.csv")
    falls = {(row["site"], row["head"]): -row[column] for row in rows}
    try:
        return like.like(torch.tensor([falls[site.name, head] for site, head in heads_at(like)]))
    except KeyError:
        analysed.report("causes: ablation/one.csv has not all heads, so the metric is left out")
        return None


def card_row(each: Effects, exact: Effects, removed: HeadMap | None, metric: str) -> TableRow:
    row: TableRow = {"approximation": f"{each.name} (exact)" if each is exact else each.name}
    row |= agreement(each.values.flat(), exact.values.flat(), signed=each.signed)
    if removed is not None:
        of_metric = agreement(each.values.flat(), removed.flat(), signed=each.signed)
        row |= {f"{name}_{metric}": number for name, number in of_metric.items()}
    return row | {"seconds": each.seconds}


def agreement(found: Tensor, exact: Tensor, *, signed: bool) -> dict[str, float | None]:
    """Spearman's correlation, share of equal signs (None unless signed), and overlap of the top quarters of
    two effects (heads,)."""
    correlation = correlate(found.tolist(), exact.tolist())["spearman"]
    equal = float((found.sign() == exact.sign()).double().mean())
    count = max(1, len(exact) // 4)
    top = [set(each.argsort(descending=True, stable=True)[:count].tolist()) for each in (found, exact)]
    return {
        "spearman": None if correlation is None else correlation[0],
        "sign": equal if signed else None,
        "top_quarter": len(top[0] & top[1]) / count,
    }


def value(effects: HeadMap, head: Head) -> float:
    return float(effects[head[0]][head[1]])
