"""The frame of the benchmarks of costs: an untrained model with its training text, and ratios with an aim.

Sizes: `toy`, the defaults of configs/schema.py, and `multi30k`, configs/multi30k.yaml.
"""

import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import ROOT, Flag, count_flag
from headgates.report.speed.measure import median_text, range_text

if TYPE_CHECKING:
    from headgates.configs.schema import FitConfig
    from headgates.data.batch import Batch
    from headgates.data.corpus import TranslationData
    from headgates.models.transformer import Transformer

SEED = 1
RATIO_COLUMNS = ["ratio", "lowest to highest"]
COST_FLAGS: list[Flag] = [
    (
        "--sizes",
        {
            "nargs": "+",
            "choices": ["toy", "multi30k"],
            "default": ["toy", "multi30k"],
            "help": "(default: both)",
        },
    ),
    ("--data-dir", {"help": "folder with a local copy of multi30k; without it the text is downloaded"}),
    count_flag("--rounds", 5, "timed blocks of each"),
]


def untrained(
    size: str, data_dir: str | None, *, sentences: int = 0
) -> "tuple[FitConfig, TranslationData, Transformer]":
    """The configuration, its data with the first `sentences` training pairs (0: all), and an untrained model
    in evaluation mode, on the GPU if there is one.

    size: "toy" for the defaults of fit.py, else the name of a YAML file in configs/."""
    import torch

    from headgates.configs.cli import from_dict
    from headgates.configs.schema import FitConfig
    from headgates.configs.yaml_file import load_yaml
    from headgates.data import load_corpus
    from headgates.data.corpus import TranslationData, make_vocabs
    from headgates.models.transformer import Transformer
    from headgates.workbench.source import best_device

    config = (
        FitConfig()
        if size == "toy"
        else from_dict(FitConfig, load_yaml(str(ROOT / "configs" / f"{size}.yaml")))
    )
    corpus = load_corpus(config.data, data_dir=data_dir, src=config.src, tgt=config.tgt)
    text = config.text
    with tempfile.TemporaryDirectory() as folder:
        source_vocab, target_vocab = make_vocabs(corpus, folder, size=text.vocab_size, joint=text.joint)
    amount: dict[str, Any] = {
        "max_tokens": text.max_tokens,
        "max_length": text.max_length,
        "train_sentences": sentences,
    }
    data = TranslationData(
        corpus=corpus, source_vocab=source_vocab, target_vocab=target_vocab, seed=SEED, **amount
    )
    torch.manual_seed(SEED)
    return (
        config,
        data,
        Transformer(config.model, len(source_vocab), len(target_vocab)).to(best_device()).train(False),
    )


def block_facts(size: str, model: "Transformer", batches: "Sequence[Batch]", **more: int) -> dict[str, Any]:
    """What a timed block works on, as entries of the JSON line."""
    tokens = sum(batch.target_tokens for batch in batches)
    amount = {
        "sentences": sum(len(batch) for batch in batches),
        "target_tokens": tokens,
        "batches": len(batches),
    }
    return {
        "size": size,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **more,
        **amount,
    }


def ratio_cells(ratio: Mapping[str, Any], aim: float | None, digits: int = 3) -> list[str]:
    """The last cells of a line, those of RATIO_COLUMNS and the verdict: "yes" if the median is at most `aim`,
    "" without an aim."""
    verdict = "" if aim is None else "yes" if ratio["median"] <= aim else "no"
    return [median_text(ratio, digits), range_text(ratio, digits), verdict]
