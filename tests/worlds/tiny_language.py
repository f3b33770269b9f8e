"""A language of thirteen words whose translation is word for word in reverse, its files, and a tiny model
over them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl

from headgates.configs.cli import read_command
from headgates.configs.settings import ModelConfig, SearchConfig, Settings
from headgates.data import Corpus, load_corpus
from headgates.data.corpus import TranslationData, make_vocabs
from headgates.data.toy import ToyPair
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder

WORDS = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri"]
SIZES = {"train": 113, "valid": 23, "test": 17}


def write_text(folder: Path) -> Path:
    """train, valid and test of source xx and target yy; no sentence twice."""
    rng, seen = random.Random(0), set()
    for split, size in SIZES.items():
        sources = []
        while len(sources) < size:
            sentence = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 7)))
            if sentence not in seen:
                seen.add(sentence)
                sources.append(sentence)
        targets = [" ".join(word[::-1] for word in reversed(source.split())) for source in sources]
        (folder / f"{split}.xx").write_text("".join(line + "\n" for line in sources), encoding="utf-8")
        (folder / f"{split}.yy").write_text("".join(line + "\n" for line in targets), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def tiny_flags(text_folder: Path) -> list[str]:
    """A configuration that trains in about a second: 21 heads, 7 steps an epoch."""
    flags = {
        "data": text_folder,
        "src": "xx",
        "tgt": "yy",
        "precision": "32",
        "model.d-model": 14,
        "model.ffn": 23,
        "model.heads": 7,
        "model.encoder-layers": 1,
        "model.decoder-layers": 1,
        "model.dropout": 0.1,
        "text.vocab-size": 47,
        "text.max-length": 31,
        "text.max-tokens": 131,
        "train.epochs": 4,
        "train.optimizer": "adamw",
        "train.lr": 0.03,
        "train.warmup-steps": 5,
        "train.bleu-sentences": 3,
        "finetune.lr": 0.003,
        "gates.lr": 0.3,
        "gates.lambda-warmup": 2,
        "search.beam": 2,
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))] + [
        "--set",
        "finetune.warmup_steps=3",
    ]


@pytest.fixture
def configure(tiny_flags: list[str], tmp_path: Path) -> Callable[..., Settings]:
    """configure("--seed", "2") is the tiny settings with these flags, its runs in tmp_path / "runs"."""
    return lambda *flags: read_command(Settings, [*tiny_flags, "--runs", str(tmp_path / "runs"), *flags])


@pytest.fixture(scope="session")
def corpus(text_folder: Path) -> Corpus:
    return load_corpus(text_folder, src="xx", tgt="yy")


@pytest.fixture(scope="session")
def vocab_folder(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocab")
    make_vocabs(corpus, folder, size=47, joint=True)
    return folder


@pytest.fixture
def translator(corpus: Corpus, vocab_folder: Path) -> Translator:
    """Untrained, with weights that depend on nothing but this fixture."""
    vocab, _ = make_vocabs(corpus, vocab_folder, size=47, joint=True)
    pl.seed_everything(0, verbose=False)
    config = ModelConfig(d_model=14, ffn=23, heads=7, encoder_layers=1, decoder_layers=1, dropout=0.0)
    return Translator(Transformer(config, len(vocab), len(vocab)), vocab, vocab, SearchConfig(beam=2))


@pytest.fixture
def data(corpus: Corpus, vocab_folder: Path) -> TranslationData:
    vocab, _ = make_vocabs(corpus, vocab_folder, size=47, joint=True)
    return TranslationData(
        corpus=corpus, source_vocab=vocab, target_vocab=vocab, max_tokens=131, max_length=31, seed=0
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.fixture
def quiet_trainer(tmp_path: Path) -> Callable[..., pl.Trainer]:
    """A Lightning trainer on the CPU that writes nothing: quiet_trainer(callback, ..., max_epochs=2)."""

    def make(*callbacks: pl.Callback, **options: object) -> pl.Trainer:
        quiet = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False
        )
        settings = {
            "accelerator": "cpu",
            "max_epochs": 1,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
        }
        return pl.Trainer(
            callbacks=list(callbacks), default_root_dir=tmp_path, **{**quiet, **settings, **options}
        )

    return make


def conllu_of(pair: ToyPair) -> str:
    """The tree of a source sentence in CoNLL-U."""
    words = zip(pair.words, pair.heads, pair.labels, strict=True)
    rows = (
        "\t".join([str(number), word, *"____", str(head), label, "_", "_"])
        for number, (word, head, label) in enumerate(words, start=1)
    )
    return "\n".join([f"# text = {pair.source}", *rows, "", ""])
