"""A tiny random BERT with a WordPiece vocabulary, in a folder as Hugging Face writes it; and labelled
sentences that it can learn."""

import random
from pathlib import Path

import pytest
import torch

LABELS = ["bad", "good"]
FILLERS = ["film", "actor", "plot", "the", "a", "of", "and", "end", "##s", "scene"]
SIGNS = {"bad": ["dull", "poor"], "good": ["funny", "rich"]}
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *FILLERS,
    *SIGNS["bad"],
    *SIGNS["good"],
    "[",
    "]",
    "sep",
]
SHAPE = {
    "hidden_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 13,
    "max_position_embeddings": 23,
}
RANDOM = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def labelled_sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """(label, sentence): the label is that of its one word that says something."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        label = rng.choice(LABELS)
        words = [
            rng.choice([word for word in FILLERS if not word.startswith("##")])
            for _ in range(rng.randint(2, 8))
        ]
        words.insert(rng.randint(0, len(words)), rng.choice(SIGNS[label]))
        found.append((label, " ".join(words)))
    return found


def write_tsv(path: Path, examples: list[tuple[str, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(example) + "\n" for example in examples), encoding="utf-8")
    return path


def write_encoder(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers", reason="classifiers are made of Hugging Face encoders")
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}', encoding="utf-8"
    )
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=len(PIECES), pad_token_id=0, **SHAPE, **RANDOM)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """The folder of the tiny encoder; no test writes in it."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "tiny-bert")


@pytest.fixture(scope="session")
def labelled(tmp_path_factory) -> Path:
    """A folder with train.tsv, dev.tsv and test.tsv; no test writes in it."""
    folder = tmp_path_factory.mktemp("labelled") / "films"
    for seed, (name, count) in enumerate({"train": 300, "dev": 61, "test": 67}.items()):
        write_tsv(folder / f"{name}.tsv", labelled_sentences(count, seed))
    return folder
