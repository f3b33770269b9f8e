"""Close down to a number of heads, and of feed-forward neurons, without training: what is lost against the
unpruned model, and a run of what is left."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from headgates.analysis.significance import RESAMPLES, above_trivial, resample_counts, score
from headgates.configs.cli import config_hash
from headgates.configs.closing import CLOSINGS, ZERO
from headgates.configs.prune import PruneConfig
from headgates.configs.systems import ScoreRow
from headgates.data.atomic_folder import atomic_folder
from headgates.data.parallel import ParallelText
from headgates.data.ranks import all_sum, first, share
from headgates.gates import FFN_KINDS, KINDS, HeadMap, find_sites, heads_left, remove
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.models.progress import say
from headgates.workbench.closing import Calibration, closed_heads
from headgates.workbench.curve import divides_by_norm, score_request
from headgates.workbench.evaluation import evaluation_key, heads_of, measures_of, size_without
from headgates.workbench.folder import RunFolder
from headgates.workbench.named_paths import check_free
from headgates.workbench.point import MadePoint
from headgates.workbench.row import ResultRow
from headgates.workbench.scores import ScoreRequest, head_scores, lowest_closed, ranked, refined
from headgates.workbench.source import BATCH_TOKENS, Lines, Source
from headgates.workbench.unpruned_model import UnprunedModel


@dataclass(frozen=True)
class Target:
    """How many heads, and feed-forward neurons, are to stay open; None: all."""

    heads: int | None = None
    neurons: int | None = None


def targets_of(unpruned: UnprunedModel, config: PruneConfig) -> list[Target]:
    """Every number of --heads with every number of --neurons, the most first. Raises ValueError at one that
    cannot be reached by closing what --kinds names."""
    chosen: list[list[int | None]] = []
    for flag, what, kinds, asked in (
        ("--heads", "heads", KINDS, config.heads),
        ("--neurons", "feed-forward neurons", FFN_KINDS, config.neurons),
    ):
        chosen.append([*sorted(asked, reverse=True)] or [None])
        counts = {site: site.heads for site in find_sites(unpruned.model, kinds)} if asked else {}
        total = sum(counts.values())
        kept = sum(min(n, config.at_least) if site.kind in config.kinds else n for site, n in counts.items())
        for count in asked:
            if not kept <= count <= total:
                why = (
                    f"; --kinds {','.join(config.kinds)} and --at-least {config.at_least} keep {kept} open"
                    if kept
                    else ""
                )
                raise ValueError(
                    f"{flag} {count}: {unpruned.folder.path} has {total} {what}{why}; expected {kept} to "
                    f"{total}"
                )
    return [Target(*pair) for pair in product(*chosen)]


def closed_to(
    target: Target, order: str, scores: HeadMap, request: ScoreRequest, *, at_least: int
) -> HeadMap:
    """The map (True: closed) that leaves so many open, by ranked scores of the kinds that may close: heads
    exactly, the neurons of each layer by a multiple of WIDTH."""
    counts = {"heads": target.heads, "ffn": target.neurons}
    keep = {}
    for word, count in counts.items():
        if count is not None:
            whole = sum(site.heads for site in find_sites(request.source.model, [word]))
            keep[word] = scores.select([word]).heads_total - (whole - count)  # of those that may close
    found = lowest_closed(scores.select(keep), keep, at_least=at_least)
    return found if at_least else refined(order, found, request)  # a refined choice knows no floor


def measure_points(
    unpruned: UnprunedModel,
    config: PruneConfig,
    calibration: Calibration,
    *,
    save: Path | None,
) -> list[MadePoint]:
    """The unpruned model, then each order at each number of heads and neurons, most first, on the test set.
    save: the folder of the new run of the only point.

    Raises ValueError at a number that cannot be, or where `save` is taken."""
    targets = targets_of(unpruned, config)
    total = sum(site.heads for site in find_sites(unpruned.model))
    everything = heads_left(unpruned.model, config.kinds)  # as open as it is
    counts = resample_counts(len(unpruned.test[0]), RESAMPLES)
    evaluation = evaluation_key(unpruned.task.prediction_settings(unpruned.predictor), unpruned.test)
    points: list[MadePoint] = []

    def measure(method: str, target: Target, closed: HeadMap | None) -> None:
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
        opened = everything
        if closed is not None:
            others = {site: row for site, row in everything.items() if site.kind not in closed.kinds}
            opened = HeadMap(others | dict(~closed))
        row = ResultRow(
            system=ScoreRow(method, closing).name,
            measures=measures_of(scored, points[0].scored if points else scored, counts),
            parameters=size_without(source.model, closed if masked else None),
            seconds=None if masked else seconds,
            evaluation=evaluation,
            reference="base",
            **heads_of(unpruned.model, opened),
        )
        if closed is None:
            row.above_trivial = above_trivial(outputs, unpruned.test[1], unpruned.task.metrics[0])
        points.append(
            MadePoint(
                method,
                0,
                config.seed,
                asked=target.heads,
                neurons=target.neurons,
                closing=closing,
                run=unpruned.folder.path.name,
                row=row,
                scored=scored,
                loss=mean_loss(source, unpruned.valid),
            )
        )
        metric = unpruned.task.metrics[0]
        say(f"{row.system}: {row.open_words} open, {metric.title} {scored.main:.2f}")
        if save is not None and gone is not None:
            first(partial(save_point, save, source, config, points, gone, outputs))

    measure("base", Target(total), None)
    for order in config.orders:
        request = score_request(unpruned, config, config.seed)
        scores = ranked(order, head_scores(order, request), l2=divides_by_norm(order, config))
        scores = scores.select(config.kinds)
        for target in targets:
            closed = closed_to(target, order, scores, request, at_least=config.at_least)
            with closed_heads(unpruned.model, closed, config.closing, calibration):
                measure(order, target, closed)
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
