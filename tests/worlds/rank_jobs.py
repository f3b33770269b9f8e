"""What the tests of several ranks do on each of them, and alone: training, scores, repair, outputs,
decisions."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.distributed.tensor import DTensor

from headgates.analysis.lrp import relevance
from headgates.analysis.scores.fisher import fisher
from headgates.analysis.scores.importance import raw_importance
from headgates.configs.settings import ModelConfig, SearchConfig, Settings
from headgates.configs.stages import GateConfig, StageConfig
from headgates.data import load_corpus, ranks
from headgates.data.corpus import TranslationData, make_vocabs
from headgates.gates import HeadMap, LambdaBudget, TargetBudget, attach, fold_mean, reconstruct
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import run_stage
from headgates.lightning_modules.stage_callback import StageCallback, Watcher
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.pruning.ablation import ablated_outputs, one_head_masks
from headgates.pruning.closing import real_positions
from headgates.pruning.runtime_cost import RuntimeCost, TimedBatch, TimedLines, TimedText, compared
from headgates.records.folder import RunFolder
from headgates.tasks.translation import Translation

TASK = Translation()
BUDGETS = {
    "l0": lambda: LambdaBudget(0.1, 2),
    "l0-frozen": lambda: LambdaBudget(0.1, 2),
    "l0-target": lambda: TargetBudget(9, 2),
    "subset": lambda: LambdaBudget(0.0, 0),
}


def world_of(text: str, vocab: str) -> tuple[Translator, TranslationData]:
    """The tiny language in these folders, and an untrained translator, always the same."""
    corpus = load_corpus(text, src="xx", tgt="yy")
    both, _ = make_vocabs(corpus, vocab, size=47, joint=True)
    pl.seed_everything(0, verbose=False)
    config = ModelConfig(d_model=14, ffn=23, heads=7, encoder_layers=1, decoder_layers=1, dropout=0.0)
    translator = Translator(Transformer(config, len(both), len(both)), both, both, SearchConfig(beam=2))
    return translator, TranslationData(
        corpus=corpus, source_vocab=both, target_vocab=both, max_tokens=131, max_length=31, seed=0
    )


class Held(Watcher):
    """What this process holds between steps, in bytes, and the norm of each whole gradient; and the
    checkpoint of step 8 is kept, in the middle of the second epoch."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.bytes: dict[str, int] = {}
        self.norms: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        (average,) = (each.average.average for each in trainer.callbacks if isinstance(each, StageCallback))
        states = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
        weights = list(module.trained.parameters())
        grads = [weight.grad for weight in weights if weight.grad is not None]
        self.norms = [
            float((grad.full_tensor() if isinstance(grad, DTensor) else grad).norm()) for grad in grads
        ]
        held = {"weights": weights, "gradients": grads, "adam": states, "average": average.values()}
        for name, tensors in held.items():
            own = [
                (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
                for tensor in tensors
            ]
            self.bytes[name] = sum(
                {storage.data_ptr(): storage.nbytes() for storage in own}.values()
            )  # several may share one
        if trainer.global_step == 9 and ranks.is_first():
            shutil.copy(self.folder / "last.pt", self.folder / "step-8.pt")


def trained(
    text: str,
    vocab: str,
    folder: str,
    gate: str | None,
    stage: StageConfig,
    strategy: str = "ddp",
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """A stage trained by the ranks that there are: its losses, the weights and gates that it ends with, and
    what its files hold."""
    warnings.simplefilter("ignore")
    translator, data = world_of(text, vocab)
    path = Path(folder)
    path.mkdir(exist_ok=True)
    data.accumulate = stage.accumulate
    gating = None
    if gate is not None:
        options = {"target_heads": 9, "anneal_steps": 5} if gate == "subset" else {}
        bank = attach(translator.model, gate="subset" if gate == "subset" else "l0", **options)
        bank.budget = BUDGETS[gate]()
        gates = GateConfig(lr=0.3, lambda_warmup=2, settle=0.0 if gate == "l0-frozen" else 0.34)
        gating = Gating(gates, bank, epochs=stage.epochs)
        if gate == "l0-frozen":  # heads are chosen on frozen weights
            translator.model.requires_grad_(False)
            translator.model.head_gates.requires_grad_(True)
    module = StageModule(
        TASK,
        translator,
        stage,
        seed=1,
        sample=(data.corpus.valid.sources[:5], data.corpus.valid.targets[:5]),
        gating=gating,
    )
    settings = Settings(
        devices=ranks.world(), precision="32", checkpoint_steps=2, strategy=strategy, resume=resume
    )
    held = Held(path)
    result = run_stage("gates", module, data, RunFolder(path), settings, watchers=[held])
    last = torch.load(path / "last.pt", weights_only=True)
    return {
        "losses": result.losses,
        "steps": result.steps,
        "settled": result.settled,
        "best": result.best_epoch,
        "weights": {name: tensor.clone() for name, tensor in module.model.state_dict().items()},
        "last": last["state_dict"],
        "average": last["callbacks"]["StageCallback"]["average"]["average"],
        "metrics": (path / "metrics.csv").read_text(),
        "world": len(last["ranks"]),
        "held": held.bytes,
        "norms": held.norms,
        "sharded": [
            type(part).__name__ for part in module.model.parameters() if type(part) is not torch.nn.Parameter
        ],
    }


def scored(text: str, vocab: str) -> dict[str, Any]:
    """Scores, repairs, outputs and ablations of an untrained model."""
    warnings.simplefilter("ignore")
    translator, data = world_of(text, vocab)
    model = translator.model.eval()
    batches = list(data.batches("train", 97))
    lines = data.corpus.test.sources[:11]
    found: dict[str, Any] = {}
    found["importance"] = raw_importance(model, batches, ranks=ranks).flat()
    found["fisher"] = fisher(model, batches, ranks=ranks).flat()
    found["relevance"] = relevance(model, batches, ranks=ranks).share.flat()
    found["outputs"] = TASK.outputs(translator, lines)
    sites = sorted(raw_importance(model, batches[:2], ranks=ranks))
    masks = [mask for site in sites for mask in one_head_masks([site], closed=True)[:2]]
    for beam in (1, 2):
        translator.search = replace(translator.search, beam=beam)
        source: Any = type("Source", (), {"predictor": translator, "task": TASK})
        ablated = ablated_outputs(source, lines, masks)
        found[f"ablated {beam}"] = (ablated.drafts, ablated.changed)
    closed = HeadMap({site: torch.arange(site.heads) < 3 for site in sites})
    for way in (reconstruct, fold_mean):
        other = world_of(text, vocab)[0].model.eval()
        how: dict[str, Any] = {"ranks": ranks} if ranks.world() > 1 else {}
        way(
            other,
            closed,
            batches,
            lambda model, batch: TASK.loss(model, batch),
            positions=real_positions,
            **how,
        )
        found[way.__name__] = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    return found


def timed(text: str, vocab: str) -> dict[str, Any]:
    """What clocks say of an untrained model: no two readings are the same to the last digit."""
    translator, data = world_of(text, vocab)
    lines = data.corpus.test.sources[:11]
    cost = RuntimeCost(translator, TimedText([TimedBatch([[5, 6, 7]] * 3, [4, 3, 2])], beam=1), "torch")
    ids = translator.source_vocab.encode(lines)
    _, speed = compared(translator, translator, "torch", 1, TimedLines(ids, 4, 1, once=True))
    return {"whole": cost.whole, "model": cost(translator.model), "each": cost.seconds_each, "speed": speed}


def decided(path: str) -> dict[str, Any]:
    """What the first rank decides, whose errors all have, and who writes."""
    from headgates.data.atomic_file import atomic_file

    answer = ranks.first(lambda: (ranks.world(), Path(path).exists()))
    try:
        ranks.first(lambda: Path(path, "missing", "file").read_text())
        error = ""
    except OSError as raised:
        error = str(raised)
    with atomic_file(Path(path) / "who") as file:
        file.write(str(ranks.rank()).encode())
    ranks.wait()
    return {
        "answer": answer,
        "error": error,
        "who": (Path(path) / "who").read_text(),
        "shared": ranks.shared_out(list(range(7)), lambda share: [10 * number for number in share]),
        "few": ranks.shared_out([3], lambda share: list(share)),
        "sum": ranks.all_sum(torch.tensor([1.0, ranks.rank()])).tolist(),
        "said": ranks.speaks_first(),
    }
