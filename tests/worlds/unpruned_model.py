"""Models that no run trained: an untrained one, and one so made that a single head matters."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from headgates.configs.settings import ModelConfig, SearchConfig
from headgates.data.splits import Corpus
from headgates.data.text import ParallelText
from headgates.data.vocab import Vocab
from headgates.gates import HeadMap, find_sites
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder
from headgates.records.source import Lines, Source
from headgates.tasks.base import Predictor, Task
from headgates.tasks.translation import Translation
from tests.worlds.small_model import stirred

WORDS = ["dog", "cat", "bird", "man", "sees", "hears", "a", "the", "small", "red", "old", "."]
SETTINGS = {
    "d_model": 21,
    "heads": 3,
    "ffn": 13,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "dropout": 0.0,
    "embeddings": "separate",
}
TEXT = {"max_tokens": 100, "max_length": 50, "train_sentences": 0}


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5))) for _ in range(count)]


def exchanged(lines: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split())
        for line in lines
    ]


def keep_alone(translator: Translator, site: str, head: int) -> None:
    """Zero what every head but one adds: closing any other changes nothing."""
    for each, module in find_sites(translator.model).items():
        columns = module.out_proj.weight.data.unflatten(1, (each.heads, -1))  # (D, H, K)
        kept = columns[:, head].clone()
        columns.zero_()
        if each.name == site:
            columns[:, head] = kept


@pytest.fixture
def make_dense(tmp_path) -> Callable[..., Source]:
    """make_dense(planted=(site, head), ...) -> the model on its text, whose validation text is its training
    text too.

    Its references are the model's own translations with words exchanged."""

    def make(
        *, planted: tuple[str, int] | None = None, beam: int = 1, seed: int = 1, share: float = 0.3
    ) -> Source:
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir(exist_ok=True)
        vocab = Vocab.train(sentences(200, 100), size=61, path=folder / "vocab.model")
        torch.manual_seed(seed)
        model = stirred(Transformer(ModelConfig(**SETTINGS), len(vocab), len(vocab)), 0.3)
        translator = Translator(
            model, vocab, vocab, SearchConfig(beam=beam, max_ratio=1.0, max_extra=4, batch_tokens=199)
        )
        if planted is not None:
            keep_alone(translator, *planted)
        texts = []
        for number, count in enumerate((19, 23)):
            sources = sentences(count, number)
            texts.append((sources, exchanged(translator.translate(sources, beam=1), share, number)))
        return source_of(folder, Translation(), translator, *texts)

    return make


def source_of(folder: RunFolder, task: Task, predictor: Predictor, valid: Lines, test: Lines) -> Source:
    """A predictor as a run's model is opened, though no run made it."""
    source = Source(folder, "base", task, predictor, {"seed": 1, "text": TEXT}, None)
    source.corpus = Corpus(ParallelText(*valid), ParallelText(*valid), ParallelText(*test), "made up", "")
    return source


@contextmanager
def without(dense: Source, closed: HeadMap) -> Iterator[None]:
    """The model with these heads' columns of W_O at zero: closed the slow way, without gates."""
    model = dense.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for site, attention in find_sites(model).items():
            if site in closed:
                attention.out_proj.weight.unflatten(1, (site.heads, -1))[:, closed[site]] = 0
    yield
    model.load_state_dict(before)


def outputs(dense: Source, closed: HeadMap, lines: list[str]) -> list[str]:
    """What it says of the lines without these heads."""
    with without(dense, closed):
        return dense.task.predict(dense.predictor, lines)


def head_masks(dense: Source, *, others: bool = False) -> list[HeadMap]:
    """For every head the mask that closes it, or the others of its site."""
    return [
        HeadMap({site: (torch.arange(site.heads) == head) ^ others})
        for site in sorted(find_sites(dense.model))
        for head in range(site.heads)
    ]
