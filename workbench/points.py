"""Close down to an exact number of heads, without training: what is lost against the unpruned model, and a
run of what is left."""

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from headgates.analysis.closing import close_to
from headgates.analysis.significance import RESAMPLES, above_trivial, resample_counts, score
from headgates.configs.cli import config_hash
from headgates.configs.closing import CLOSINGS, ZERO
from headgates.configs.prune import PruneConfig
from headgates.configs.systems import ScoreRow
from headgates.data.atomic_folder import atomic_folder
from headgates.data.parallel import ParallelText
from headgates.data.ranks import all_sum, first, share
from headgates.gates import HeadMap, find_sites, remove
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.models.progress import say
from headgates.workbench.closing import Calibration, closed_heads
from headgates.workbench.curve import divides_by_norm, score_request
from headgates.workbench.evaluation import evaluation_key, heads_of, measures_of, size_without
from headgates.workbench.folder import RunFolder
from headgates.workbench.named_paths import check_free
from headgates.workbench.point import MadePoint
from headgates.workbench.row import ResultRow
from headgates.workbench.scores import head_scores, ranked, refined
from headgates.workbench.source import BATCH_TOKENS, Lines, Source
from headgates.workbench.unpruned_model import UnprunedModel


def checked_total(unpruned: UnprunedModel, config: PruneConfig) -> int:
    """The model's number of heads. Raises ValueError at a number of --heads that cannot be reached by closing
    heads of the kinds."""
    heads = {site: site.heads for site in find_sites(unpruned.model)}
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
                f"--heads {count}: {unpruned.folder.path} has {total} heads{why}; expected {kept} to {total}"
            )
    return total


def measure_points(
    unpruned: UnprunedModel,
    config: PruneConfig,
    calibration: Calibration,
    *,
    save: Path | None,
) -> list[MadePoint]:
    """The model with all heads, then each order at each number of heads, most first, on the test set. save:
    the folder of the new run of the only point.

    Raises ValueError at a number of heads that cannot be, or where `save` is taken."""
    total = checked_total(unpruned, config)
    counts = resample_counts(len(unpruned.test[0]), RESAMPLES)
    evaluation = evaluation_key(unpruned.task.prediction_settings(unpruned.predictor), unpruned.test)
    points: list[MadePoint] = []

    def measure(method: str, count: int, closed: HeadMap | None) -> None:
        """Add the model as it is, without its `closed` heads, as a point, and save it if asked."""
        closing, source, gone = ZERO if closed is None else config.closing, unpruned, None
        if closed is not None and CLOSINGS[closing].permanent:
            predictor = copy.copy(unpruned.predictor)
            predictor.model = copy.deepcopy(unpruned.model)
            gone = remove(predictor.model, closed).heads
            source = replace(unpruned, predictor=predictor)
            source.corpus = unpruned.corpus
        begin = time.perf_counter()
        outputs = source.task.outputs(source.predictor, unpruned.test[0])
        seconds = time.perf_counter() - begin
        scored = score(outputs, unpruned.test[1], unpruned.task.metrics)
        masked = gone is None and closed is not None
        row = ResultRow(
            system=ScoreRow(method, closing).name,
            measures=measures_of(scored, points[0].scored if points else scored, counts),
            parameters=size_without(source.model, closed if masked else None),
            seconds=None if masked else seconds,
            evaluation=evaluation,
            reference="base",
            **heads_of(unpruned.model, None if closed is None else ~closed),
        )
        if closed is None:
            row.above_trivial = above_trivial(outputs, unpruned.test[1], unpruned.task.metrics[0])
        points.append(
            MadePoint(
                method,
                0,
                config.seed,
                asked=count,
                closing=closing,
                run=unpruned.folder.path.name,
                row=row,
                scored=scored,
                loss=mean_loss(source, unpruned.valid),
            )
        )
        metric = unpruned.task.metrics[0]
        say(f"{row.system}: {count} of {total} heads open, {metric.title} {scored.main:.2f}")
        if save is not None and gone is not None:
            first(partial(save_point, save, source, config, points, gone, outputs))

    measure("base", total, None)
    for order in config.orders:
        request = score_request(unpruned, config, config.seed)
        scores = ranked(order, head_scores(order, request), l2=divides_by_norm(order, config))
        scores = scores.select(config.kinds)
        for count in sorted(config.heads, reverse=True):
            keep = scores.heads_total - (total - count)  # of the kinds that may close
            closed = close_to(scores, keep, at_least=config.at_least)
            closed = closed if config.at_least else refined(order, closed, request)  # which knows no floor
            with closed_heads(unpruned.model, closed, config.closing, calibration):
                measure(order, count, closed)
    return points


def mean_loss(source: Source, text: Lines) -> float:
    """The task's loss, without smoothing, in nats per unit (target token); pairs longer than the run allows
    are left out."""
    empty = ParallelText([], [])
    data = source.data(replace(source.corpus, train=empty, valid=ParallelText(*text), test=empty))
    sums = torch.zeros(2, dtype=torch.float64)  # the loss, units
    device = next(source.model.parameters()).device
    with evaluation_mode(source.model), torch.no_grad():
        for batch in share(data.batches("valid", BATCH_TOKENS)):
            sums[0] += float(source.task.loss(source.model, batch.to(device)))
            sums[1] += batch.target_tokens
    loss, units = all_sum(sums).tolist()
    return loss / units


def save_point(
    path: Path,
    source: UnprunedModel,
    config: PruneConfig,
    points: Sequence[MadePoint],
    gone: HeadMap,
    outputs: list[str],
) -> None:
    """Write the model whose heads are `gone`, the last of the points, as a run, whole or not at all: a
    finished base, which translates, exports and can be trained on. It has the settings, the text and the
    tokenizer of the run that it was made of. Raises ValueError where the path is taken."""
    check_free(path)
    point = points[-1]
    above = above_trivial(outputs, source.test[1], source.task.metrics[0])
    row = replace(point.row, system="base", above_trivial=above)
    pruned = {
        "source": source.folder.path.resolve().name,
        "source_hash": source.config.get("run_hash"),
        "order": point.method,
        "seed": config.seed,
        "closing": config.closing,
        "calibration": {"sentences": config.calibration_sentences, "targets": config.calibration_targets},
        "closed": gone.to_json(),
        **{
            f"{name}_model": each.row.to_json() | {"validation_loss": each.loss}
            for name, each in (("unpruned", points[0]), ("this", point))
        },
    }
    settings = {**source.config, "name": path.name, "gate": "none", "base": None, "runs": str(path.parent)}
    data = (source.folder.result() or {}).get("data")
    with atomic_folder(path) as place:
        draft = RunFolder(place)
        draft.copy_files(source.folder, source.task.tokenizer_files)
        source.task.save_model(draft / "best.pt", source.predictor)
        draft.write_command(source.facts)
        draft.write_outputs("base", outputs)
        result = {"rows": [row.to_json()], "pruned": pruned, **source.facts}
        result |= {"data": data} if data else {}
        draft.finish_base(settings, config_hash(pruned), result, tokenizer=source.task.tokenizer_files)
        check_free(path)  # by another process meanwhile
