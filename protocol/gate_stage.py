"""The stage of `fit.py` that trains gates on a base and makes them exactly 0 or 1."""

from dataclasses import replace
from typing import TYPE_CHECKING

from configs.methods import GateMethod
from configs.scores import SCORES
from gates import GateBank, HeadMap, attach, detach, heads_left
from lightning_modules.gating import Gating, budget_of
from lightning_modules.stage import StageResult, freeze_decoder
from protocol.evaluation import Evaluation
from pruning.scores import compute_scores, head_scores, ranked
from runfolder.folder import RunFolder
from tasks.base import Predictor

if TYPE_CHECKING:
    from protocol.experiment import Experiment


def learn_gates(
    experiment: "Experiment", method: GateMethod, predictor: Predictor, folder: RunFolder, base: RunFolder, evaluation: Evaluation
) -> HeadMap:
    """Train the gates, make them exactly 0 or 1, evaluate the model before and after, and return the open heads (bool)."""
    config, model = experiment.config, predictor.model
    bank, result = train_gates(experiment, method, predictor, folder, base, told=config.told_heads)
    bank.save(folder / "gates.json")
    bank.binarise(False)  # its last epochs may have trained the weights for gates at 0 or 1
    open_heads, soft = bank.open(), bank.values()
    exact = open_heads.map(lambda row: row.double())
    facts = {"expected_open_heads": bank.open_prob().sum(), "stage": result.to_json()}
    if method.soft in config.systems:
        evaluation.add(method.soft, folder / "best.pt", predictor, soft.map(lambda row: row > 0), xi=soft, **facts)
    detach(model)
    attach(model, gate="mask", kinds=config.kinds, xi=open_heads)
    if method.soft in config.systems and soft.map(lambda row: row.double()) == exact:
        evaluation.repeat(method.exact, method.soft, folder / "best.pt", exact, because="all gates are exactly 0 or 1")
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
    """Train gates on the predictor's heads as they are now, and return them, exact where the stage made them so, with how it went.

    told: how many stay open, for methods that are told their number. name, prefix: of the stage, and of its files in the folder."""
    config, model = experiment.config, predictor.model
    options = method.gate_options(config.gates) | head_start(experiment, method, predictor, base, told)
    if method.steered_by == "heads":
        options["open_heads"] = told
    bank = attach(model, gate=method.gate, kinds=config.kinds, **options)
    if config.freeze_decoder:
        freeze_decoder(model)
    gating = Gating(config.gates, budget_of(method, config, told), epochs=config.finetune.epochs, told=method.steered_by == "heads")
    module = experiment.finetuning(predictor, base, seed_offset=2, gating=gating)
    return bank, experiment.train(name, module, folder, config.finetune, prefix=prefix)


def head_start(
    experiment: "Experiment", method: GateMethod, predictor: Predictor, base: RunFolder, told: int | dict[str, int] | None
) -> dict[str, HeadMap]:
    """Where the gates start: `head_start` above or below the middle at the ends of the order by gradient importance, and 0 where, of gates
    that are told a number, as many are above; nothing where all start alike. Scores of the base are kept in its folder, those of a model
    with fewer heads are not."""
    config = experiment.config
    if not config.gates.head_start:
        return {}
    request, left = experiment.score_request(experiment.text.source(base)), heads_left(predictor.model)
    if left.count() == left.heads_total:
        scores = head_scores("gradient", request).select(config.kinds)
    else:
        request = replace(request, source=replace(request.source, predictor=predictor))
        scores = compute_scores(SCORES["gradient"], request).select(config.kinds)
    scores = HeadMap({site: row for site, row in scores.items() if site.heads})
    flat = ranked("gradient", scores).flat()  # each layer scaled as greedy pruning does: a raw order would empty whole layers
    ranks = flat.argsort(stable=True).argsort() + 0.5  # 0.5 for the least important head
    keep = sum(told.values()) if isinstance(told, dict) else told
    border = len(flat) / 2 if keep is None else len(flat) - keep
    starts = config.gates.head_start * (ranks - border) / (len(flat) / 2)
    if keep is None:  # a price has yet to close any
        starts = starts + getattr(config.gates, method.starts)
    rows = starts.split([site.heads for site in scores])
    return {method.starts: HeadMap(dict(zip(scores, rows, strict=True)))}
