"""The runs of `fit.py`: a base, the base trained on, gates on its heads, rows of scores at a number of heads,
and the open heads from random weights."""

import time
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from headgates.configs.closing import ZERO
from headgates.configs.methods import METHODS, GateMethod
from headgates.configs.schema import StageConfig
from headgates.configs.scores import SCORES
from headgates.configs.systems import ScoreRow, file_name, score_rows
from headgates.data.ranks import first, is_first
from headgates.gates import (
    FFN_KINDS,
    KINDS,
    WIDTH,
    GateBank,
    HeadMap,
    HeadSite,
    attach,
    detach,
    heads_left,
    remove,
)
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.stage import StageResult
from headgates.models.progress import say
from headgates.tasks.base import Predictor
from headgates.workbench.closing import Calibration, close_heads
from headgates.workbench.distilled_text import distilled_seconds
from headgates.workbench.dynamics import Dynamics
from headgates.workbench.fingerprint import BASE, CONTINUED, SCORED
from headgates.workbench.folder import RunFolder
from headgates.workbench.lab import Lab, Run
from headgates.workbench.scores import (
    closed_by,
    compute_scores,
    head_scores,
    kinds_suffix,
    ranked,
    scoring_seconds,
)
from headgates.workbench.source import Source

HEAD_START = 2.5  # log_alpha at the ends of a score's order

# ---------------------------------------------------------------- bases


def base_run(lab: Lab) -> RunFolder:
    """A finished base: the one named by --base, one in --runs with the same configuration, or one that is
    trained now."""
    config, text = lab.config, lab.text
    if lab.named_base is not None:
        return lab.named_base
    with lab.run(f"{text.prefix}-none-s{config.seed}", gate=BASE) as run:
        if run.done:
            if config.base_alone:
                evaluate_again(run)
            return run.folder
        first(lambda: lab.task.prepare_folder(run.folder.path, text.corpus, config))
        text.data(run.folder)
        pl.seed_everything(config.seed, verbose=False)
        predictor = lab.task.new_predictor(run.folder.path, config)
        result = run.train("base", predictor, config.train, watchers=dynamics(run))
        add_ungated(run, "base", predictor, result.to_json())
    return run.folder


def continued_run(lab: Lab, base: RunFolder) -> RunFolder:
    """The base trained on without gates for as many epochs as the gates get. All gate runs with this
    fine-tuning share it."""
    with lab.run(f"{lab.text.prefix}-continued-s{lab.config.seed}", gate=CONTINUED, on=base) as run:
        if not run.done:
            predictor = run.load()
            result = run.train_on("base-continued", predictor)
            add_ungated(run, "base-continued", predictor, result.to_json())
    return run.folder


def add_ungated(run: Run, system: str, predictor: Predictor, stage: dict[str, Any] | None) -> None:
    """Evaluate a model without gates, the only row of its run."""
    evaluation = run.begin_rows(predictor)
    evaluation.add(system, run.folder / "best.pt", predictor, None, stage=stage)
    evaluation.choose_reference()
    run.finish(system)


def evaluate_again(run: Run) -> None:
    """Translate the test set of this configuration, where the finished base was evaluated on another or with
    another search."""
    row = next(iter(run.folder.rows()), None)  # a base that others trained has none
    if row is None:
        return
    predictor = run.text.load(run.folder)
    if row.evaluation == run.begin_rows(predictor).fingerprint:
        return
    say(
        "base: its result is of other test lines or another search; "
        f"the {len(run.text.test[0])} lines are translated now"
    )
    add_ungated(run, "base", predictor, row.stage)


def dynamics(run: Run) -> list[Dynamics]:
    """The callback that prunes the base while it trains, or nothing without --dynamics."""
    config, text = run.config, run.text
    if not config.dynamics:
        return []
    data = run.task.data(run.folder.path, text.corpus, text.settings, train_sentences=config.sentences)
    validated = data.split("valid").numbers[: config.test_sentences or None]
    valid = (
        [text.corpus.valid.sources[number] for number in validated],
        [text.corpus.valid.targets[number] for number in validated],
    )
    facts = {
        "train_sentences": len(data.train_pairs),
        "text_digest": text.corpus.digest(),
        **run.lab.provenance,
    }
    return [Dynamics(run.folder, config.dynamics, data=data, valid=valid, facts=facts)]


# ---------------------------------------------------------------- learned gates


def gated_run(lab: Lab, base: RunFolder, continued: RunFolder | None) -> RunFolder:
    """Gates trained on the base, made exactly 0 or 1, and compared with closing by scores at the same number
    of heads."""
    config, method = lab.config, METHODS[lab.config.gate]
    kinds = ["+".join(config.heads_per_kind)] if config.heads_per_kind else kinds_suffix(config.kinds)
    words = [lab.text.prefix, method.name, method.control_word(config), *kinds, f"s{config.seed}"]
    with lab.run("-".join(words), gate=method.name, on=base) as run:
        if run.done:
            return run.folder
        predictor = run.load()
        run.compare_with(continued, predictor)
        open_heads = learn_gates(run, method, predictor)
        if method.removed in config.systems:
            add_removed(run, method, predictor, open_heads)
        keep = config.targets if isinstance(config.targets, dict) else counts_of(open_heads)
        add_score_rows(run, continued, keep=keep, total=counts_of(open_heads.map(torch.ones_like)))
        if method.scratch in config.systems:
            train_from_scratch(run, method.scratch, open_heads)
        run.finish(method.exact)
    return run.folder


def learn_gates(run: Run, method: GateMethod, predictor: Predictor) -> HeadMap:
    """Train the gates, make them exactly 0 or 1, evaluate the model before and after, and return the open
    heads (bool)."""
    config, model, weights, evaluation = run.config, predictor.model, run.folder / "best.pt", run.evaluation
    bank, result, compute = train_gates(run, method, predictor, targets=config.targets)
    if is_first():
        bank.save(run.folder / "gates.json")
    bank.binarise(False)  # its last epochs may have trained the weights for gates at 0 or 1
    open_heads, soft = bank.open(), bank.values()
    exact, expected = open_heads.map(lambda row: row.double()), bank.open_prob()
    add = partial(
        evaluation.add,
        expected_open_heads=expected_of(KINDS, expected),
        expected_open_neurons=expected_of(FFN_KINDS, expected),
        stage=result.to_json(),
        compute=compute,
    )
    if method.soft in config.systems:
        add(method.soft, weights, predictor, soft.map(lambda row: row > 0), xi=soft)
    detach(model)
    attach(model, gate="mask", kinds=config.kinds, xi=open_heads)
    if method.soft in config.systems and soft.map(lambda row: row.double()) == exact:
        evaluation.repeat(method.exact, method.soft, weights, exact, because="all gates are exactly 0 or 1")
    else:
        add(method.exact, weights, predictor, open_heads, xi=exact)
    evaluation.warn_about_binarising(method)
    return open_heads


def counts_of(opened: HeadMap) -> int | dict[str, int]:
    """How many are open, as `FitConfig.targets` says it: a number where there are heads alone, else by
    word."""
    heads, neurons = opened.select(KINDS), opened.select(FFN_KINDS)
    if not len(neurons):
        return heads.count()
    return ({"heads": heads.count()} if len(heads) else {}) | {"ffn": neurons.count()}


def expected_of(kinds: tuple[str, ...], expected: HeadMap) -> float | None:
    """How many of these kinds gates expected to be open; None where they have none."""
    part = expected.select(kinds)
    return part.sum() if len(part) else None


def train_gates(
    run: Run,
    method: GateMethod,
    predictor: Predictor,
    *,
    targets: int | dict[str, int] | None,
    name: str = "gates",
    prefix: str = "",
) -> tuple[GateBank, StageResult, dict[str, float]]:
    """Train gates on the predictor's heads as they are now, and return them, exact where a stage made them
    so, with how it went and the seconds of its parts (`ResultRow.compute`).

    With `gates.reconstruct` the heads are chosen first, in a stage of its own and on frozen weights; then
    weights are refitted, and the stage trains them with the closed heads at 0.

    targets: how many stay open, for methods that have a number. name, prefix: of the stage, and of its files
    in the folder."""
    config, model, gates = run.config, predictor.model, run.config.gates
    start = replace(run.text.source(run.base), predictor=predictor)
    start.corpus = run.text.corpus  # read already
    started, choice = head_start(run, method, start, targets)
    options = method.gate_options(gates) | started
    bank = attach(
        model,
        gate=method.gate,
        kinds=config.kinds,
        heads=targets if method.controlled_by == "heads" else None,
        lam=config.lam if method.controlled_by == "lambda" else None,
        warmup=gates.lambda_warmup,
        multiple=WIDTH,
        **options,
    )
    if gates.reconstruct is None:
        gating = Gating(gates, bank.budget, epochs=config.finetune.epochs)
        result = run.train_on(name, predictor, prefix=prefix, gating=gating)
        return bank, result, compute_of(run, result, choice)
    chosen = f"{prefix}choice-"
    stage = replace(config.finetuning, epochs=gates.choose_epochs, average=0.0)  # gates move too far for one
    model.requires_grad_(False)
    bank.requires_grad_(True)
    gating = Gating(replace(gates, settle=0.0), bank.budget, epochs=stage.epochs)
    choice += run.train_on(f"{name}: choice", predictor, stage, prefix=chosen, gating=gating).seconds
    bank.binarise()
    closed = bank.closed()
    detach(model)
    model.requires_grad_(True)
    begin = time.perf_counter()
    close_heads(model, closed, gates.reconstruct, Calibration(start, seed=config.seed))
    refit = time.perf_counter() - begin
    attach(model, gate="mask", kinds=config.kinds, xi=(~closed).map(lambda row: row.double()))
    result = run.train_on(name, predictor, prefix=prefix)
    for file in ("best.pt", "last.pt"):
        (run.folder / f"{chosen}{file}").unlink(missing_ok=True)
    return bank, result, compute_of(run, result, choice, refit)


def compute_of(run: Run, result: StageResult | None, choice: float, refit: float = 0.0) -> dict[str, float]:
    """The seconds of what made a row, by `ResultRow.compute`; parts that it has not are left out."""
    parts = {"choice": choice, "refit": refit}
    if result is not None:
        parts |= {"text": distilled_seconds(run.text, run.base), "training": result.seconds}
    return {name: round(seconds, 1) for name, seconds in parts.items() if seconds}


def head_start(
    run: Run, method: GateMethod, start: Source, targets: int | dict[str, int] | None
) -> tuple[dict[str, HeadMap], float]:
    """Where the gates start: HEAD_START above or below the middle at the ends of the order of the method's
    score, and 0 where as many are above as stay, heads and neurons each in an order of their own; nothing
    where all start alike. And the seconds of the score.
    Scores of the base are kept in its folder, those of a model with fewer heads are not."""
    by, begin = method.start_by, time.perf_counter()
    if by is None:
        return {}, 0.0
    request = run.lab.score_request(start)
    unpruned = all(row.all() for row in heads_left(start.model, run.config.kinds).values())
    scores = head_scores(by, request) if unpruned else compute_scores(SCORES[by], request)[SCORES[by].part]
    seconds = scoring_seconds(by, request) if unpruned else time.perf_counter() - begin
    scores = HeadMap({site: row for site, row in scores.select(run.config.kinds).items() if site.heads})
    # each layer scaled as pruning by it does: a raw order would empty whole layers
    order = ranked(by, scores)
    assert targets is not None  # methods with a start have a number of heads
    counts = targets if isinstance(targets, dict) else {"heads": targets}
    neurons = counts.get("ffn", 0)
    starts = start_of(order.select(KINDS), sum(counts.values()) - neurons) | start_of(
        order.select(FFN_KINDS), neurons
    )
    return {method.init: HeadMap(starts)}, seconds


def start_of(order: HeadMap, keep: int) -> dict[HeadSite, Tensor]:
    """Where the gates of ranked scores start of which `keep` stay (`head_start`)."""
    flat = order.flat()
    ranks = flat.argsort(stable=True).argsort() + 0.5  # 0.5 for the head that closes first
    return dict(order.like(HEAD_START * (ranks - (len(flat) - keep)) / (len(flat) / 2)))


def add_removed(run: Run, method: GateMethod, predictor: Predictor, open_heads: HeadMap) -> None:
    """Remove the closed heads from the gated model, save and evaluate it, and count the lines it translates
    differently."""
    evaluation = run.evaluation
    if open_heads.count() == open_heads.heads_total:
        evaluation.repeat(method.removed, method.exact, run.folder / "best.pt", because="nothing is closed")
        return
    detach(predictor.model)
    remove(predictor.model, ~open_heads)
    weights = run.folder / f"{method.removed}.pt"
    run.task.save_model(weights, predictor)
    # what stays in the weights may be closed
    still_open = HeadMap(dict(heads_left(predictor.model)) | dict(open_heads))
    row = evaluation.add(method.removed, weights, predictor, still_open)
    ours, theirs = run.folder.outputs(method.removed), run.folder.outputs(method.exact)
    row.lines_unlike_masked = sum(a != b for a, b in zip(ours, theirs, strict=True))
    if row.lines_unlike_masked:
        say(
            f"{method.removed}: {row.lines_unlike_masked} of {len(run.text.test[0])} lines are not those of "
            f"{method.exact}: sums in another order, at near ties"
        )


def train_from_scratch(run: Run, row: str, open_heads: HeadMap) -> None:
    """Train and evaluate the open heads from random weights, with the base's seed: as the base was trained,
    then as long as the gates (Voita et al. 2019, table 2)."""
    config, folder = run.config, run.folder
    pl.seed_everything(config.seed, verbose=False)
    predictor = run.task.new_predictor(run.base.path, config)
    attach(predictor.model, gate="mask", kinds=config.kinds, xi=open_heads)
    as_base, after = f"{row}-base-", f"{row}-"
    if not first((folder / f"{after}stage.json").is_file):
        schedule = as_many_batches(run.base, run.lab.machine.ranks)
        run.train(row, predictor, schedule, prefix=as_base, seeded_as="base")
    result = run.train_on(f"{row}, on", predictor, prefix=after, seeded_as="base-continued", whole=True)
    for name in (f"{as_base}best.pt", f"{as_base}last.pt", f"{after}last.pt"):
        (folder / name).unlink(missing_ok=True)
    xi = open_heads.map(lambda row: row.double())
    run.evaluation.add(row, folder / result.weights, predictor, open_heads, xi=xi, stage=result.to_json())


def as_many_batches(base: RunFolder, ranks: int) -> StageConfig:
    """How a base was trained, with as many batches a step as it had, by so many ranks."""
    settings = base.config()
    schedule = StageConfig(**settings["train"])
    its_ranks = settings.get("devices", 1) * settings.get("num_nodes", 1)
    return replace(schedule, accumulate=max(1, schedule.accumulate * its_ranks // ranks))


# ---------------------------------------------------------------- scores


def scored_run(lab: Lab, base: RunFolder, continued: RunFolder | None) -> RunFolder:
    """The run of `--gate scores --heads K --neurons N`: rows of scores at exactly so many. Its own system is
    the last."""
    config = lab.config
    counts = {"heads": config.heads, "neurons": config.neurons}
    words = [f"{name}-{count}" for name, count in counts.items() if count is not None]
    assert config.targets is not None
    with lab.run("-".join([lab.text.prefix, *words, f"s{config.seed}"]), gate=SCORED, on=base) as run:
        if not run.done:
            predictor = run.load()
            evaluation = run.compare_with(continued, predictor)
            total = counts_of(heads_left(predictor.model, config.kinds))
            add_score_rows(run, continued, keep=config.targets, total=total)
            run.finish(evaluation.rows[-1].system)
    return run.folder


Counts = int | dict[str, int]  # `FitConfig.targets`


def add_score_rows(run: Run, continued: RunFolder | None, *, keep: Counts, total: Counts) -> None:
    """Add every row of a score that the configuration names, with `keep` of the `total` heads and neurons of
    its kinds open. Where none is closed, the rows are those of the bases."""
    for score, rows in score_rows(run.config.systems).items():
        if continued is None or keep != total:
            add_rows_of(run, score, rows, keep=keep)
            continue
        for row in rows:
            other, weights = ("base-continued", continued) if row.trained else ("base", run.base)
            run.evaluation.repeat(row.name, other, weights / "best.pt", because="nothing is closed")


def add_rows_of(run: Run, score: str, rows: list[ScoreRow], *, keep: Counts) -> None:
    """Close all but `keep` of the gated kinds' heads and neurons on the base, lowest scores first, in each of
    the ways that the rows name; then fine-tune as long as the gates were."""
    config, folder = run.config, run.folder
    source = run.text.source(run.base)
    request = run.lab.score_request(source)
    scores = head_scores(score, request).select(config.kinds)
    choice, begin = scoring_seconds(score, request), time.perf_counter()
    closed = closed_by(score, scores, request=request, keep=keep)
    choice += time.perf_counter() - begin
    file = SCORES[score].part or SCORES[score].family or score
    folder.write_json(f"scores/{file}.json", scores.to_json())
    xi = (~closed).map(lambda row: row.double())
    for closing, of_closing in groupby(rows, key=lambda row: row.closing):
        source, weights = run.text.source(run.base), run.base / "best.pt"
        predictor, refit = source.predictor, 0.0
        if closing != ZERO:  # refitted on a sample of the run's own training text
            begin = time.perf_counter()
            close_heads(source.model, closed, closing, Calibration(source, seed=config.seed))
            refit = time.perf_counter() - begin
            weights = folder / f"{file_name(ScoreRow(score, closing).name)}.pt"
            run.task.save_model(weights, predictor)
        attach(predictor.model, gate="mask", kinds=config.kinds, xi=xi)
        for row in of_closing:
            result = None
            if row.trained:
                result = run.train_on(row.name, predictor, prefix=f"{file_name(row.name)}-")
                (folder / f"{file_name(row.name)}-last.pt").unlink(missing_ok=True)
                weights = folder / result.weights
            run.evaluation.add(
                row.name,
                weights,
                predictor,
                ~closed,
                xi=xi,
                stage=result and result.to_json(),
                compute=compute_of(run, result, choice, refit),
            )
