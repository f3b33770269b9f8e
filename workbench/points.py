"""Close down to an exact number of heads, without training: what is lost against the unpruned model, and a
run of what is left."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from headgates.analysis.closing import close_to
from headgates.analysis.significance import resample_counts, score
from headgates.configs.cli import config_hash
from headgates.configs.closing import ZERO
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
from headgates.workbench.evaluation import RESAMPLES, evaluation_key, heads_of, measures_of
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

    def measure(method: str, count: int, closed: HeadMap | None) -> list[str]:
        """Add the model as it is, whose `closed` heads are closed, as a point; return its outputs."""
        closing = ZERO if closed is None else config.closing
        outputs = unpruned.task.outputs(unpruned.predictor, unpruned.test[0])
        scored = score(outputs, unpruned.test[1], unpruned.task.metrics)
        row = ResultRow(
            system=ScoreRow(method, closing).name,
            measures=measures_of(scored, points[0].scored if points else scored, counts),
            evaluation=evaluation,
            reference="base",
            **heads_of(unpruned.model, None if closed is None else ~closed),
        )
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
                loss=mean_loss(unpruned, unpruned.valid),
            )
        )
        metric = unpruned.task.metrics[0]
        say(f"{row.system}: {count} of {total} heads open, {metric.title} {scored.main:.2f}")
        return outputs

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
                outputs = measure(order, count, closed)
                if save is not None:
                    first(partial(save_point, save, unpruned, config, points, closed, outputs))
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
    unpruned: UnprunedModel,
    config: PruneConfig,
    points: Sequence[MadePoint],
    closed: HeadMap,
    outputs: list[str],
) -> None:
    """Take the closed heads out of a copy of the model as it is, and write the copy, the last of the points,
    as a run, whole or not at all: a finished base, which translates, exports and can be trained on. It has
    the settings, the text and the tokenizer of the run that it was made of. Raises ValueError where the path
    is taken."""
    check_free(path)
    point = points[-1]
    predictor = copy.copy(unpruned.predictor)
    predictor.model = copy.deepcopy(unpruned.model)
    removed = remove(predictor.model, closed)
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    row = replace(point.row, system="base", parameters=parameters)
    pruned = {
        "source": unpruned.folder.path.resolve().name,
        "source_hash": unpruned.config.get("run_hash"),
        "order": point.method,
        "seed": config.seed,
        "closing": config.closing,
        "calibration": {"sentences": config.calibration_sentences, "targets": config.calibration_targets},
        "closed": removed.heads.to_json(),
        **{
            f"{name}_model": each.row.to_json() | {"validation_loss": each.loss}
            for name, each in (("unpruned", points[0]), ("this", point))
        },
    }
    settings = {**unpruned.config, "name": path.name, "gate": "none", "base": None, "runs": str(path.parent)}
    data = (unpruned.folder.result() or {}).get("data")
    with atomic_folder(path) as place:
        draft = RunFolder(place)
        draft.copy_files(unpruned.folder, unpruned.task.tokenizer_files)
        unpruned.task.save_model(draft / "best.pt", predictor)
        draft.write_command(unpruned.facts)
        draft.write_outputs("base", outputs)
        result = {"rows": [row.to_json()], "pruned": pruned, **unpruned.facts}
        result |= {"data": data} if data else {}
        draft.finish_base(settings, config_hash(pruned), result, tokenizer=unpruned.task.tokenizer_files)
        check_free(path)  # by another process meanwhile
