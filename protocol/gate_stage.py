"""The stage of `fit.py` that trains gates on a base and makes them exactly 0 or 1."""

from typing import TYPE_CHECKING

from configs.methods import GateMethod
from gates import HeadMap, attach, detach
from lightning_modules.gating import Gating, budget_of
from lightning_modules.stage import freeze_decoder
from protocol.evaluation import Evaluation
from pruning.scores import head_scores, ranked
from runfolder.folder import RunFolder
from tasks.base import Predictor

if TYPE_CHECKING:
    from protocol.experiment import Experiment


def learn_gates(
    experiment: "Experiment", method: GateMethod, predictor: Predictor, folder: RunFolder, base: RunFolder, evaluation: Evaluation
) -> HeadMap:
    """Train the gates, make them exactly 0 or 1, evaluate the model before and after, and return the open heads (bool)."""
    config, model = experiment.config, predictor.model
    options = method.gate_options(config.gates) | head_start(experiment, method, base)
    if method.steered_by == "heads":
        options["open_heads"] = config.told_heads
    bank = attach(model, gate=method.gate, kinds=config.kinds, **options)
    if config.freeze_decoder:
        freeze_decoder(model)
    gating = Gating(config.gates, budget_of(method, config), epochs=config.finetune.epochs, told=method.steered_by == "heads")
    module = experiment.finetuning(predictor, base, seed_offset=2, gating=gating)
    result = experiment.train("gates", module, folder, config.finetune)
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


def head_start(experiment: "Experiment", method: GateMethod, base: RunFolder) -> dict[str, HeadMap]:
    """Where the gates start: `head_start` above or below the middle at the ends of the order by gradient importance, and 0 where, of gates
    that are told a number, as many are above; nothing where all start alike."""
    config = experiment.config
    if not config.gates.head_start:
        return {}
    scores = head_scores("gradient", experiment.score_request(experiment.text.source(base))).select(config.kinds)
    flat = ranked("gradient", scores).flat()  # each layer scaled as greedy pruning does: a raw order would empty whole layers
    ranks = flat.argsort(stable=True).argsort() + 0.5  # 0.5 for the least important head
    border = len(flat) / 2 if config.heads is None else len(flat) - config.heads
    starts = config.gates.head_start * (ranks - border) / (len(flat) / 2)
    if config.heads is None:  # a price has yet to close any
        starts = starts + getattr(config.gates, method.starts)
    rows = starts.split([site.heads for site in scores])
    return {method.starts: HeadMap(dict(zip(scores, rows, strict=True)))}
