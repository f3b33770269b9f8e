"""Close down to an exact number of heads, without training: what is lost against the whole model, and a run
of what is left."""

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headgates.analysis.closing import close_to
from headgates.analysis.significance import Scored, compare
from headgates.configs.prune import PruneConfig
from headgates.data.parallel import ParallelText, digest_lines
from headgates.data.ranks import all_sum, first, share
from headgates.gates import HeadMap, find_sites, remove
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.models.progress import Report
from headgates.workbench.closing import Calibration, closed_heads
from headgates.workbench.curve import SPLITS, MaskScorer, divides_by_norm, score_request
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.evaluation import heads_of
from headgates.workbench.pruned_run import check_free, save_pruned_run
from headgates.workbench.row import Measure, ResultRow
from headgates.workbench.scores import head_scores, ranked, refined
from headgates.workbench.source import BATCH_TOKENS, Lines, Source


@dataclass
class Point:
    """A model with some heads closed. scores: split -> the metrics. compared: split -> the columns of
    `significance.compare` against the whole model. losses: split -> nats per unit of the loss."""

    order: str
    heads_open: int
    heads_total: int
    scores: dict[str, Scored]
    losses: dict[str, float]
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)
    saved: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Split -> metric -> value, and against the whole model the difference, its interval and p."""
        return {
            split: {**self.scores[split].values, "loss": self.losses[split], **self.compared.get(split, {})}
            for split in self.scores
        }


def check_heads(dense: DenseModel, config: PruneConfig) -> None:
    """Raises ValueError at a number of --heads that cannot be reached by closing heads of the kinds."""
    heads = {site: site.heads for site in find_sites(dense.source.model)}
    total = sum(heads.values())
    kept = sum(
        min(count, config.at_least) if site.kind in config.kinds else count for site, count in heads.items()
    )
    for count in config.heads:
        if not kept <= count <= total:
            why = (
                f"; --kinds {','.join(config.kinds)} and --at-least {config.at_least} keep {kept} open"
                if kept
                else ""
            )
            raise ValueError(
                f"--heads {count}: {dense.folder.path} has {total} heads{why}; expected {kept} to {total}"
            )


def measure_points(
    dense: DenseModel,
    config: PruneConfig,
    calibration: Calibration | None,
    *,
    save: Path | None,
    report: Report,
) -> list[Point]:
    """The whole model, then each order at each number of heads, most first. save: the folder of the new run
    of the only point.

    Raises ValueError at a number of heads that cannot be, or where `save` is taken."""
    check_heads(dense, config)
    if save is not None:
        check_free(save)
    source, scorer = dense.source, MaskScorer(dense)
    total = sum(scorer.site_heads.values())
    whole = Point("none", total, total, scorer.base, losses_of(dense))
    points = [whole]
    for order in config.orders:
        request = score_request(dense, config, config.seed, report)
        scores = ranked(order, head_scores(order, request), l2=divides_by_norm(order, config))
        scores = scores.select(config.kinds)
        for count in sorted(config.heads, reverse=True):
            keep = scores.heads_total - (total - count)  # of the kinds that may close
            closed = close_to(scores, keep, at_least=config.at_least)
            closed = closed if config.at_least else refined(order, closed, request)  # which knows no floor
            with closed_heads(source.model, closed, config.closing, calibration):
                found = scorer.score_now()
                point = Point(
                    order,
                    count,
                    total,
                    {split: scored for split, (scored, _) in found.items()},
                    losses_of(dense),
                )
                for split in SPLITS:
                    point.compared[split] = compare(
                        point.scores[split], whole.scores[split], scorer.resamples[split]
                    )
                if save is not None:
                    first(partial(save_point, save, dense, config, point, whole, closed, found["test"][1]))
                    point.saved = save
            points.append(point)
            metric = source.task.metrics[0]
            values = ", ".join(
                f"{point.scores[split].main:.2f} on {'validation' if split == 'valid' else split}"
                for split in SPLITS
            )
            report(f"{order}, {config.closing}: {count} of {total} heads open, {metric.title} {values}")
    return points


def losses_of(dense: DenseModel) -> dict[str, float]:
    return {"valid": mean_loss(dense.source, dense.valid), "test": mean_loss(dense.source, dense.test)}


def mean_loss(source: Source, text: Lines) -> float:
    """The task's loss, without smoothing, in nats per unit (target token); pairs longer than the run allows
    are left out."""
    empty = ParallelText([], [])
    data = source.data(replace(source.corpus, train=empty, valid=ParallelText(*text), test=empty))
    sums, device = (
        torch.zeros(2, dtype=torch.float64),
        next(source.model.parameters()).device,
    )  # the loss, units
    with evaluation_mode(source.model), torch.no_grad():
        for batch in share(data.batches("valid", BATCH_TOKENS)):
            sums += torch.tensor(
                [float(source.task.loss(source.model, batch.to(device))), batch.target_tokens],
                dtype=torch.float64,
            )
    loss, units = all_sum(sums).tolist()
    return loss / units


def save_point(
    path: Path,
    dense: DenseModel,
    config: PruneConfig,
    point: Point,
    whole: Point,
    closed: HeadMap,
    outputs: list[str],
) -> None:
    """Take the closed heads out of a copy of the model as it is, and write the copy as a run."""
    source = dense.source
    predictor = copy.copy(source.predictor)
    predictor.model = copy.deepcopy(source.model)
    removed = remove(predictor.model, closed)
    test = point.scores["test"]
    measures = {name: Measure(test[name], signature) for name, signature in test.signatures.items()}
    for name, measure in measures.items():
        measure.ci95 = point.compared["test"][f"{name}_ci95"]
    row = ResultRow(
        system="base",
        measures=measures,
        **heads_of(source.model, ~closed),
        parameters=sum(parameter.numel() for parameter in predictor.model.parameters()),
        evaluation={
            **source.task.prediction_settings(predictor),
            "sentences": len(dense.test[0]),
            "test_digest": digest_lines(*dense.test),
        },
        reference="base",
    )
    pruned = {
        "source": dense.folder.path.resolve().name,
        "source_hash": source.config.get("run_hash"),
        "order": point.order,
        "seed": config.seed,
        "closing": config.closing,
        "calibration": {"sentences": config.calibration_sentences, "targets": config.calibration_targets},
        "closed": removed.heads.to_json(),
        "whole_model": whole.to_json(),
        "this_model": point.to_json(),
    }
    save_pruned_run(path, source, predictor, row, outputs, pruned=pruned, facts=dense.facts)
