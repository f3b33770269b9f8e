"""What do our own passes cost beside a plain one over the same sentences?

    gates       a training step with a Hard Concrete gate on every head   beside the step without
    importance  importance of all heads                                    beside a forward and backward pass
    relevance   LRP of all heads, by each rule, summed over steps         beside a training step in fp32
    refit       refits with every second head closed                      beside a forward pass

An untrained model of fit.py's default size (`toy`), as wide as Transformer-big (`large`) or of
configs/multi30k.yaml takes the same batches of real text in turns with the plain pass. In fp32, but for
`gates`, which takes fit.py's own precision.
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.benchmark import ROOT, Answer, Flag, count_flag, run
from benchmarks.product_step import gated_step, product_step
from headgates.analysis.batches import batch_loss
from headgates.analysis.lrp import relevance
from headgates.analysis.ratio_walk import RatioWalk
from headgates.analysis.scores.importance import raw_importance
from headgates.configs.cli import from_dict
from headgates.configs.fields import to_dict
from headgates.configs.settings import Settings
from headgates.configs.yaml_file import load_yaml
from headgates.data import Corpus, load_corpus
from headgates.data.batch import Batch
from headgates.data.corpus import TranslationData
from headgates.gates import HeadMap, find_sites
from headgates.lab.measure import alternate, ratio_by_round, spread_text
from headgates.lightning_modules.precision import resolve_precision
from headgates.models.transformer import Transformer
from headgates.pruning.closing import HOW, real_positions
from headgates.records.provenance import device_name
from headgates.records.source import best_device
from headgates.tasks.translation import Translation

COSTS_SEED, TASK = 1, Translation()
PLAIN = "plain"
SIZES: dict[str, dict[str, Any]] = {
    "toy": {},
    "large": {"model": {"d_model": 1024, "heads": 16, "ffn": 4096}},
}
KNOWN_SETTINGS = {field.name for field in fields(Settings)}  # a recipe may stand beside them
Blocks = Mapping[str, Callable[[], object]]  # what is timed by its name, PLAIN among them


def open_batches(corpus: Corpus, config: Settings, folder: Path, *, sentences: int = 0) -> TranslationData:
    """The batches of the first `sentences` training pairs (0: all); their vocabulary is made in the
    folder."""
    TASK.prepare_folder(folder, corpus, config)
    return TASK.data(folder, corpus, to_dict(config), train_sentences=sentences)


def untrained(config: Settings, folder: Path) -> Transformer:
    """The model of the settings and of the vocabulary in a folder, in evaluation mode, on the best device."""
    torch.manual_seed(COSTS_SEED)
    model: Transformer = TASK.new_predictor(folder, config).model
    return model.to(best_device()).eval()


def gates(config: Settings, model: Transformer, batches: Sequence[Batch]) -> Blocks:
    precision = resolve_precision(config, device_name())
    stage = config.finetuning(1)
    plain = product_step(copy.deepcopy(model), stage, precision)
    gated = gated_step(model, stage, config.gates, lam=0.01, precision=precision)
    return {PLAIN: lambda: plain.block(batches), "with gates": lambda: gated.block(batches)}


def importances(config: Settings, model: Transformer, batches: Sequence[Batch]) -> Blocks:
    def plain() -> None:
        for batch in batches:
            torch.autograd.grad(batch_loss(model, batch), list(model.parameters()))

    return {PLAIN: plain, "per sentence": lambda: raw_importance(model, batches)}


def relevances(config: Settings, model: Transformer, batches: Sequence[Batch]) -> Blocks:
    plain = product_step(copy.deepcopy(model), config.train, "32")
    return {
        PLAIN: lambda: plain.block(batches),
        "gate-gradient": lambda: relevance(model, batches, walk=None, aggregation="sum"),
        "ratio": lambda: relevance(model, batches, walk=RatioWalk, aggregation="sum"),
    }


def refits(config: Settings, model: Transformer, batches: Sequence[Batch]) -> Blocks:
    closed = HeadMap({site: torch.arange(site.heads) % 2 == 1 for site in find_sites(model)})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def forward(model: Transformer, batch: Batch) -> object:
        return model(batch.source, batch.target_in)

    def plain() -> None:
        with torch.no_grad():
            for batch in batches:
                forward(model, batch)

    def refit(how: str) -> None:
        HOW[how](model, closed, batches, forward, positions=real_positions)
        model.load_state_dict(before)

    return {PLAIN: plain, **{how: partial(refit, how) for how in ("out", "out+ffn+v")}}


MEASURED_PASSES = {"gates": gates, "importance": importances, "relevance": relevances, "refit": refits}


def measure_pass(what: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    """The ratio of each block's seconds to the plain pass's, round by round."""
    settings = SIZES[size] if size in SIZES else load_yaml(ROOT / f"configs/{size}.yaml")
    config = from_dict(Settings, {name: settings[name] for name in settings if name in KNOWN_SETTINGS})
    corpus = load_corpus(config.data, data_dir=options.data_dir, src=config.src, tgt=config.tgt)
    with tempfile.TemporaryDirectory() as folder:
        data = open_batches(corpus, config, Path(folder), sentences=options.sentences)
        model = untrained(config, Path(folder))
    batches = [batch.to(model.output.weight.device) for batch in data.batches("train", options.max_tokens)]
    seconds = alternate(MEASURED_PASSES[what](config, model, batches), rounds=options.rounds)
    plain = seconds.pop(PLAIN)
    ratio = {name: ratio_by_round(each, plain) for name, each in seconds.items()}
    return {"what": what, "size": size, "batches": len(batches), "ratio": ratio}


def answer(options: argparse.Namespace) -> Answer:
    measured = [measure_pass(what, size, options) for what in options.what for size in options.sizes]
    rows = [
        [each["what"], each["size"], name, spread_text(ratio, 3)]
        for each in measured
        for name, ratio in each["ratio"].items()
    ]
    header = ["what", "size", "", "times as long as plain (lowest to highest)"]
    return Answer(
        {"measured": measured, "rounds": options.rounds},
        header,
        rows,
        seed=COSTS_SEED,
        peers=["pytorch-lightning"],
    )


QUESTION = "seconds of our passes over those of a plain pass on the same sentences"
FLAGS: list[Flag] = [
    ("--what", {"nargs": "+", "choices": [*MEASURED_PASSES], "default": [*MEASURED_PASSES]}),
    ("--sizes", {"nargs": "+", "choices": [*SIZES, "multi30k"], "default": ["toy"]}),
    ("--data-dir", {"help": "folder with a local copy of multi30k; without it the text is downloaded"}),
    count_flag("--sentences", 500, "training pairs of a pass"),
    count_flag("--max-tokens", 4000, "of a batch, padding counted"),
    count_flag("--rounds", 5, "timed blocks of each"),
]

if __name__ == "__main__":
    sys.exit(run("costs", QUESTION, __doc__, FLAGS, answer))
