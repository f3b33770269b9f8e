"""Close down to a number of heads, and of feed-forward neurons, and drop layers, without training: what is
lost against the unpruned model, and a run of what is left."""

import copy
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from headgates.analysis.significance import RESAMPLES, above_trivial, resample_counts, score
from headgates.configs.cli import config_hash
from headgates.configs.closing import CLOSINGS, ZERO
from headgates.configs.prune import PruneConfig
from headgates.configs.systems import ScoreRow
from headgates.data.atomic_folder import atomic_folder
from headgates.data.parallel import ParallelText
from headgates.data.ranks import all_sum, first, share
from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, find_sites, heads_left, remove
from headgates.gates.depth import Layers, drop_layers, skipped
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.headmap import is_of
from headgates.gates.site_walk import open_sites
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

LAYERS_ALONE = "layers"  # in the place of an order, where nothing else closes
OF_NEURONS = ("neurons_open", "neurons_total", "neurons_by_site")  # fields of a row


@dataclass(frozen=True)
class Target:
    """How many heads, and feed-forward neurons, are to stay open; None: all."""

    heads: int | None = None
    neurons: int | None = None


def targets_of(unpruned: UnprunedModel, config: PruneConfig) -> list[Target]:
    """Every number of --heads with every number of --neurons, the most first. Raises ValueError at one that
    cannot be reached by closing what --kinds names, beside the skipped layers."""
    chosen: list[list[int | None]] = []
    beside = f" in the layers that stay beside {', '.join(config.drop_layers)}" if config.drop_layers else ""
    for flag, what, kinds, asked in (
        ("--heads", "heads", KINDS, config.heads),
        ("--neurons", "feed-forward neurons", FFN_KINDS, config.neurons),
    ):
        chosen.append([*sorted(asked, reverse=True)] or [None])
        counts = {site: site.heads for site in open_sites(unpruned.model, kinds)} if asked else {}
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
                    f"{flag} {count}: {unpruned.folder.path} has {total} {what}{beside}{why}; expected "
                    f"{kept} to {total}"
                )
    return [Target(*pair) for pair in product(*chosen)]


def closed_to(
    target: Target,
    order: str,
    scores: HeadMap,
    request: ScoreRequest,
    *,
    at_least: int,
    there: Collection[HeadSite],
) -> HeadMap:
    """The map (True: closed) of the sites that are `there` that leaves so many open, by ranked scores of the
    kinds that may close: heads exactly, the neurons of each layer by a multiple of WIDTH."""
    counts = {"heads": target.heads, "ffn": target.neurons}
    own = HeadMap({site: row for site, row in scores.items() if site in there})
    keep = {}
    for word, count in counts.items():
        if count is not None:
            whole = sum(site.heads for site in there if is_of(site.kind, word))
            keep[word] = own.select([word]).heads_total - (whole - count)  # of those that may close
    found = lowest_closed(own.select(keep), keep, at_least=at_least)
    return found if at_least else refined(order, found, request)  # a refined choice knows no floor


@dataclass(frozen=True)
class Asked:
    """A model to make: its `closed` heads and neurons go, and whole `layers` of each stack. method: what
    chose them. heads, neurons: how many were asked for. planned: what a plan says of it (planned.py)."""

    method: str
    closed: HeadMap
    layers: Layers
    heads: int | None = None
    neurons: int | None = None
    planned: dict[str, Any] | None = None


def asked_by_orders(unpruned: UnprunedModel, config: PruneConfig) -> Iterator[Asked]:
    """Each order at each number of heads and neurons, the most first, all without the layers that the
    configuration drops; these alone where there is no number. Raises ValueError at a number or layer that
    cannot be."""
    with skipped(unpruned.model, config.layers):
        targets, there = targets_of(unpruned, config), open_sites(unpruned.model, ALL_KINDS)

    def asked() -> Iterator[Asked]:
        for order in config.orders:
            request = score_request(unpruned, config, config.seed)
            scores = ranked(order, head_scores(order, request), l2=divides_by_norm(order, config))
            scores = scores.select(config.kinds)
            for target in targets:
                closed = closed_to(target, order, scores, request, at_least=config.at_least, there=there)
                yield Asked(order, closed, config.layers, target.heads, target.neurons)
        if not config.orders:
            yield Asked(LAYERS_ALONE, HeadMap({}), config.layers)

    return asked()


# the outputs of a model for the test lines, and how fast it is, where that is measured
Run = Callable[[Source], tuple[list[str], dict[str, Any] | None]]


def measure_points(
    unpruned: UnprunedModel,
    config: PruneConfig,
    calibration: Calibration,
    asked: Iterable[Asked],
    *,
    save: Path | None,
    run: Run | None = None,
) -> list[MadePoint]:
    """The unpruned model, then each that is asked for, on the test set. save: the folder of the new run of
    the only one. run: what translates, this project's own search unless given.

    Raises ValueError where `save` is taken."""
    total = sum(site.heads for site in find_sites(unpruned.model))
    counts = resample_counts(len(unpruned.test[0]), RESAMPLES)
    evaluation = evaluation_key(unpruned.task.prediction_settings(unpruned.predictor), unpruned.test)
    points: list[MadePoint] = []

    def measure(ask: Asked | None, closed: HeadMap) -> None:
        """Add the model as it is, without its `closed` heads and the layers, as a point, and save it if
        asked."""
        closing, source, gone = ZERO if ask is None else config.closing, unpruned, None
        layers: Layers = {} if ask is None else ask.layers
        if ask is not None and CLOSINGS[closing].permanent:
            predictor = copy.copy(unpruned.predictor)
            predictor.model = copy.deepcopy(unpruned.model)
            gone = remove(predictor.model, closed).heads
            drop_layers(predictor.model, layers)
            source = replace(unpruned, predictor=predictor)
            source.corpus = unpruned.corpus
        begin = time.perf_counter()
        outputs, speed = (own_outputs if run is None else run)(source)
        seconds = time.perf_counter() - begin
        scored = score(outputs, unpruned.test[1], unpruned.task.metrics)
        masked = gone is None and ask is not None
        everything = heads_left(unpruned.model, kinds_of(config))  # as open as it is
        others = {site: row for site, row in everything.items() if site.kind not in closed.kinds}
        row = ResultRow(
            system=ScoreRow("base" if ask is None else ask.method, closing).name,
            measures=measures_of(scored, points[0].scored if points else scored, counts),
            parameters=size_without(source.model, closed if masked else None, layers),
            seconds=None if masked or run is not None else seconds,
            evaluation=evaluation,
            reference="base",
            **heads_of(unpruned.model, HeadMap(others | dict(~closed))),
        )
        if ask is None:
            row.above_trivial = above_trivial(outputs, unpruned.test[1], unpruned.task.metrics[0])
        elif ask.planned is not None:
            row.others["speed"] = ask.planned | (speed or {})
        points.append(
            MadePoint(
                "base" if ask is None else ask.method,
                0,
                config.seed,
                asked=total if ask is None else ask.heads,
                neurons=None if ask is None else ask.neurons,
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

    measure(None, HeadMap({}))
    if CLOSINGS[config.closing].calibrated and calibration.targets == "own":
        _ = calibration.data  # translated by the model with all its layers
    for ask in asked:
        passed = {
            site: torch.ones(site.heads, dtype=torch.bool)
            for site in find_sites(unpruned.model, kinds_of(config))
            if site.layer in ask.layers.get(site.stack, ())
        }
        closed = HeadMap(dict(ask.closed) | passed)
        with (
            skipped(unpruned.model, ask.layers),
            closed_heads(unpruned.model, closed, config.closing, calibration),
        ):
            measure(ask, closed)
    return points


def own_outputs(source: Source) -> tuple[list[str], None]:
    assert isinstance(source, UnprunedModel)
    return source.task.outputs(source.predictor, source.test[0]), None


def kinds_of(config: PruneConfig) -> Sequence[str]:
    """The kinds whose units a row counts."""
    return KINDS if {*FFN_KINDS}.isdisjoint(config.kinds) else ALL_KINDS


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
    # of the layers that it has, as they are numbered now
    heads: dict[str, Any] = {**dict.fromkeys(OF_NEURONS), **heads_of(source.model, None)}
    row = replace(point.row, system="base", above_trivial=above, **heads)
    layers = row.layers_left or {}
    pruned = {
        "source": source.folder.path.resolve().name,
        "source_hash": source.config.get("run_hash"),
        "order": point.method,
        "seed": config.seed,
        "closing": config.closing,
        "calibration": {"sentences": config.calibration_sentences, "targets": config.calibration_targets},
        "closed": gone.to_json(),
        **({"layers_left": layers} if layers else {}),
        **{
            f"{name}_model": each.row.to_json() | {"validation_loss": each.loss}
            for name, each in (("unpruned", points[0]), ("this", point))
        },
    }
    with atomic_folder(path) as place:
        draft = RunFolder(place)
        draft.copy_files(source.folder, source.task.tokenizer_files)
        source.task.save_model(draft / "best.pt", source.predictor)
        finish_made(draft, path, source, {"pruned": pruned}, row, outputs, layers=layers)


def finish_made(
    draft: RunFolder,
    path: Path,
    source: UnprunedModel,
    made: dict[str, Any],
    row: ResultRow,
    outputs: Sequence[str],
    *,
    layers: Mapping[str, Sequence[bool]] | None = None,
) -> None:
    """Make a draft with weights and a tokenizer the finished base at `path`, which was made of a run. made:
    how, by its name in result.json. layers: of a stack that lost some, whether each is left. Raises
    ValueError where the path is taken meanwhile."""
    settings = {**source.config, "name": path.name, "gate": "none", "base": None, "runs": str(path.parent)}
    if layers:
        sizes = {f"{stack}_layers": sum(left) for stack, left in layers.items()}
        settings["model"] = source.config["model"] | sizes
    data = (source.folder.result() or {}).get("data")
    draft.write_command(source.facts)
    draft.write_outputs("base", outputs)
    result = {"rows": [row.to_json()], **made, **source.facts}
    result |= {"data": data} if data else {}
    draft.finish_base(settings, config_hash(made), result, tokenizer=source.task.tokenizer_files)
    check_free(path)  # by another process meanwhile
