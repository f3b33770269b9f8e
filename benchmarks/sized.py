"""A fresh model of a configuration's size, and its training text: what costs are measured on."""

import tempfile
from typing import TYPE_CHECKING

from speed.measure import ROOT

if TYPE_CHECKING:
    from configs.schema import FitConfig
    from data.corpus import TranslationData
    from models.transformer import Transformer


def sized(size: str, *, sentences: int, data_dir: str | None, seed: int) -> "tuple[FitConfig, TranslationData, Transformer]":
    """Settings, data with the first `sentences` training pairs, and an untrained model in evaluation mode, on the GPU if there is one.

    size: "toy" for fit.py's defaults, else the name of a YAML in configs/."""
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
