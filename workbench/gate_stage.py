"""The stage of `fit.py` that trains gates on a base and makes them exactly 0 or 1."""

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from headgates.configs.methods import GateMethod
from headgates.configs.scores import SCORES
from headgates.data.ranks import is_first
from headgates.gates import GateBank, HeadMap, attach, detach, heads_left
from headgates.lightning_modules.gating import Gating, budget_of
from headgates.lightning_modules.stage import StageResult, freeze_decoder
from headgates.tasks.base import Predictor
from headgates.workbench.closing import Calibration, close_heads
from headgates.workbench.evaluation import Evaluation
from headgates.workbench.folder import RunFolder
from headgates.workbench.scores import compute_scores, head_scores, ranked
from headgates.workbench.source import Source

if TYPE_CHECKING:
    from headgates.workbench.experiment import Experiment


def learn_gates(
    experiment: "Experiment",
    method: GateMethod,
    predictor: Predictor,
    folder: RunFolder,
    base: RunFolder,
    evaluation: Evaluation,
) -> HeadMap:
    """Train the gates, make them exactly 0 or 1, evaluate the model before and after, and return the open
    heads (bool)."""
    config, model = experiment.config, predictor.model
    bank, result = train_gates(experiment, method, predictor, folder, base, told=config.told_heads)
    if is_first():
        bank.save(folder / "gates.json")
    bank.binarise(False)  # its last epochs may have trained the weights for gates at 0 or 1
    open_heads, soft = bank.open(), bank.values()
    exact = open_heads.map(lambda row: row.double())
    facts = {"expected_open_heads": bank.open_prob().sum(), "stage": result.to_json()}
    if method.soft in config.systems:
        evaluation.add(
            method.soft, folder / "best.pt", predictor, soft.map(lambda row: row > 0), xi=soft, **facts
        )
    detach(model)
    attach(model, gate="mask", kinds=config.kinds, xi=open_heads)
    if method.soft in config.systems and soft.map(lambda row: row.double()) == exact:
        evaluation.repeat(
            method.exact, method.soft, folder / "best.pt", exact, because="all gates are exactly 0 or 1"
        )
    else:
        evaluation.add(method.exact, folder / "best.pt", predictor, open_heads, xi=exact, **facts)
    evaluation.warn_about_binarising(method)
    return open_heads


def train_gates(
    experiment: "Experiment",
    method: GateMethod,
    predictor: Predictor,
    folder: RunFolder,
    base: RunFolder,
    *,
    told: int | dict[str, int] | None,
    name: str = "gates",
    prefix: str = "",
) -> tuple[GateBank, StageResult]:
    """Train gates on the predictor's heads as they are now, and return them, exact where the stage made them
    so, with how it went.

    told: how many stay open, for methods that are told their number. name, prefix: of the stage, and of its
    files in the folder."""
    config, model = experiment.config, predictor.model
    began = experiment.text.source(base)
    if config.gates.close != "zero" or not is_whole(model):
        began = replace(began, predictor=with_model(predictor, copy.deepcopy(model)))
        began.corpus = experiment.text.corpus  # read already
    options = method.gate_options(config.gates) | head_start(experiment, method, began, told)
    if method.steered_by == "heads":
        options["open_heads"] = told
    bank = attach(model, gate=method.gate, kinds=config.kinds, **options)
    if config.freeze_decoder:
        freeze_decoder(model)
    gating = Gating(
        config.gates,
        budget_of(method, config, told),
        epochs=config.finetune.epochs,
        told=method.steered_by == "heads",
        at_settling=None
        if config.gates.close == "zero"
        else partial(begin_again, model, began, config.gates.close),
    )
    module = experiment.finetuning(predictor, base, seed_offset=2, gating=gating)
    return bank, experiment.train(name, module, folder, config.finetune, base=base, prefix=prefix)


def begin_again(model: Any, began: Source, how: str, bank: GateBank) -> None:
    """Once the heads are decided: the weights become those that the stage began with, closed as `how` says.
    What they learned under noise is given up for a refit towards the whole model."""
    closed = bank.closed()
    whole = {name: weight.clone() for name, weight in began.model.state_dict().items()}
    close_heads(began.model, closed, how, Calibration(began))
    state = model.state_dict()
    with torch.no_grad():
        for name, weight in began.model.state_dict().items():
            state[name].copy_(weight)
    began.model.load_state_dict(whole)


def with_model(predictor: Predictor, model: Any) -> Predictor:
    other: Any = copy.copy(predictor)
    other.model = model
    return cast(Predictor, other)


def is_whole(model: Any) -> bool:
    left = heads_left(model)
    return left.count() == left.heads_total


def head_start(
    experiment: "Experiment", method: GateMethod, began: Source, told: int | dict[str, int] | None
) -> dict[str, HeadMap]:
    """Where the gates start: `head_start` above or below the middle at the ends of the order by a score, and
    0 where, of gates that are told a number, as many are above; nothing where all start alike. Scores of the
    base are kept in its folder, those of a model with fewer heads are not."""
    config = experiment.config
    if not config.gates.head_start:
        return {}
    by, request = config.gates.head_start_by, experiment.score_request(began)
    scores = head_scores(by, request) if is_whole(began.model) else compute_scores(SCORES[by], request)
    scores = HeadMap({site: row for site, row in scores.select(config.kinds).items() if site.heads})
    flat = ranked(
        by, scores
    ).flat()  # each layer scaled as pruning by it does: a raw order would empty whole layers
    ranks = flat.argsort(stable=True).argsort() + 0.5  # 0.5 for the head that closes first
    keep = sum(told.values()) if isinstance(told, dict) else told
    border = len(flat) / 2 if keep is None else len(flat) - keep
    starts = config.gates.head_start * (ranks - border) / (len(flat) / 2)
    if keep is None:  # a price has yet to close any
        starts = starts + getattr(config.gates, method.starts)
    rows = starts.split([site.heads for site in scores])
    return {method.starts: HeadMap(dict(zip(scores, rows, strict=True)))}
