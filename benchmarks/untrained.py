"""The untrained model and the training text of a configuration, on which costs are measured, and the flags that choose them."""

import tempfile
from typing import TYPE_CHECKING

from benchmarks.benchmark import ROOT, Flag

if TYPE_CHECKING:
    from configs.schema import FitConfig
    from data.corpus import TranslationData
    from models.transformer import Transformer

SIZE_FLAGS: list[Flag] = [
    ("--sizes", {"nargs": "+", "choices": ["toy", "multi30k"], "default": ["toy", "multi30k"], "help": "(default: both)"}),
    ("--data-dir", {"help": "folder with a local copy of multi30k; without it the text is downloaded"}),
]


def untrained(size: str, *, data_dir: str | None, seed: int, sentences: int = 0) -> "tuple[FitConfig, TranslationData, Transformer]":
    """The configuration, its data with the first `sentences` training pairs (0: all), and an untrained model in evaluation mode, on the GPU
    if there is one.

    size: "toy" for the defaults of fit.py, else the name of a YAML file in configs/."""
    import torch

    from configs.cli import from_dict
    from configs.schema import FitConfig
    from configs.yaml_file import load_yaml
    from data import load_corpus
    from data.corpus import TranslationData, make_vocabs
    from models.transformer import Transformer

    config = FitConfig() if size == "toy" else from_dict(FitConfig, load_yaml(str(ROOT / "configs" / f"{size}.yaml")))
    corpus = load_corpus(config.data, data_dir=data_dir, src=config.src, tgt=config.tgt)
    text = config.text
    with tempfile.TemporaryDirectory() as folder:
        source_vocab, target_vocab = make_vocabs(corpus, folder, size=text.vocab_size, joint=text.joint)
    data = TranslationData(
        corpus=corpus,
        source_vocab=source_vocab,
        target_vocab=target_vocab,
        max_tokens=text.max_tokens,
        max_length=text.max_length,
        seed=seed,
        train_sentences=sentences,
    )
    torch.manual_seed(seed)
    model = Transformer(config.model, len(source_vocab), len(target_vocab))
    return config, data, model.to("cuda" if torch.cuda.is_available() else "cpu").train(False)
