"""Tiny untrained translators of every architecture, some without heads, and the lines they translate."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headgates.bridges.exported import FORMATS, Format
from headgates.configs.settings import ModelConfig, SearchConfig
from headgates.data.shortlist import Shortlist
from headgates.data.vocab import Vocab, load_vocabs
from headgates.gates import HeadMap, find_sites, remove
from headgates.gates.depth import drop_layers
from headgates.models.checkpoint import load_model, save_model
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from tests.worlds.small_model import stirred

SOURCES = ["the dog sleeps .", "", "a big cat sees the small dog .", "dogs sleep", "   ", "the cat"]
TARGETS = ["der Hund schläft .", "x", "", "Hunde schlafen", "eine Katze", "die Katze sieht den Hund ."]
SEARCH = SearchConfig(
    beam=3, max_ratio=1.0, max_extra=5, batch_tokens=29
)  # so few tokens that lines come in several batches
SHAPE = {
    "d_model": 22,
    "heads": 2,
    "ffn": 13,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "embeddings": "separate",
    "dropout": 0.3,
}
SITES = [
    "encoder.0.enc-self",
    "encoder.1.enc-self",
    "decoder.0.dec-self",
    "decoder.1.dec-self",
    "decoder.0.cross",
    "decoder.1.cross",
]
FFN_SITES = ["encoder.0.enc-ffn", "encoder.1.enc-ffn", "decoder.0.dec-ffn", "decoder.1.dec-ffn"]
NEURONS_CLOSED = {"neurons": [5, 13, 0, 8], "depth": [5, 13, 8, 0], "depth, all heads": [5, 3, 8, 0]}
# of models with three layers a stack
DROPPED = {name: {"encoder": [1], "decoder": [0, 2]} for name in ("depth", "depth, all heads")}
HEADS_CLOSED = {
    "none": [0, 0, 0, 0, 0, 0],
    "uneven": [1, 2, 1, 0, 0, 1],
    "empty layers": [2, 0, 2, 1, 0, 2],
    "all": [2, 2, 2, 2, 2, 2],
    "neurons": [1, 0, 0, 0, 0, 1],
    "depth": [1, 0, 0, 0, 1, 0],
    "depth, all heads": [0, 0, 0, 0, 0, 0],
}


@pytest.fixture
def pairs() -> tuple[list[str], list[str]]:
    """Sources and targets, empty ones among them."""
    return SOURCES, TARGETS


@pytest.fixture(scope="session")
def toy_vocabs(tmp_path_factory) -> dict[str, Vocab]:
    """Vocabularies of the source, of the target, and of both."""
    folder = tmp_path_factory.mktemp("vocabs")
    texts = {"src": SOURCES, "tgt": TARGETS, "both": SOURCES + TARGETS}
    sizes = {"src": 37, "tgt": 41, "both": 53}
    return {
        name: Vocab.train(
            [line for line in text if line.strip()] * 3, size=sizes[name], path=folder / f"{name}.model"
        )
        for name, text in texts.items()
    }


@pytest.fixture(scope="session")
def make_translator(toy_vocabs) -> Callable[..., Translator]:
    """make_translator("uneven", joint=True, norm="post"): random weights, biases and norms, without the heads
    of HEADS_CLOSED, the neurons of NEURONS_CLOSED and the layers of DROPPED."""

    def make(
        closed: str = "none", *, joint: bool = False, search: SearchConfig = SEARCH, seed: int = 0, **settings
    ) -> Translator:
        torch.manual_seed(seed)
        source, target = (toy_vocabs["both"],) * 2 if joint else (toy_vocabs["src"], toy_vocabs["tgt"])
        deep = {"encoder_layers": 3, "decoder_layers": 3} if closed in DROPPED else {}
        shape = SHAPE | deep | settings
        model = stirred(Transformer(ModelConfig(**shape), len(source), len(target)), 0.3)
        drop_layers(model, DROPPED.get(closed, {}))
        count = dict(zip(SITES, HEADS_CLOSED[closed], strict=True))
        count |= dict(zip(FFN_SITES, NEURONS_CLOSED.get(closed, [0] * 4), strict=True))
        sites = find_sites(model, "all")
        remove(model, HeadMap({site: torch.arange(site.heads) < count[site.name] for site in sites}))
        return Translator(model.eval(), source, target, search)

    return make


def shortened(translator: Translator) -> tuple[Translator, list[list[int]]]:
    """The translator with a shortlist of random pieces, and the list of each source piece."""
    luck, model = random.Random(0), translator.model
    lists = [luck.sample(range(4, model.target_vocab), 4) for _ in range(model.source_vocab)]
    vocabs = translator.source_vocab, translator.target_vocab
    return Translator(model, *vocabs, translator.search, Shortlist.of(lists, first=6)), lists


def difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """The largest difference of two rows of as many numbers each."""
    assert [len(row) for row in ours] == [len(row) for row in theirs]
    return max(abs(a - b) for rows in zip(ours, theirs, strict=True) for a, b in zip(*rows, strict=True))


def scores_differ(ours, theirs, sources: list[str] = SOURCES, targets: list[str] = TARGETS) -> float:
    """The largest difference of the log-probabilities that two translators give to the same pieces."""
    return difference(ours.score(sources, targets), theirs.score(sources, targets))


def check_same_n_best(ours, theirs, lines: list[str], beam: int) -> None:
    """All hypotheses of two translators are the same, with the same log-probabilities."""
    both = [each.translate_n_best(lines, beam=beam) for each in (ours, theirs)]
    texts = [[[(one.text, one.tokens) for one in best] for best in each] for each in both]
    assert texts[0] == texts[1]
    assert difference(*([[one.log_prob for one in best] for best in each] for each in both)) < 1e-3


def settled(translator: Translator, end: float = 2.0) -> Translator:
    """The translator, whose padding and beginning now have next to no probability, as after training; `end`
    is added to the end's logit."""
    model, specials = translator.model, translator.model.target_specials
    norm = (
        model.decoder.norm
        if model.config.has_final_norm("decoder")
        else model.decoder.layers[-1].feed_residual.norm
    )
    with torch.no_grad():
        if getattr(norm, "bias", None) is None:
            model.output.bias[list(specials.never_produced)] -= 30
            model.output.bias[specials.end] += end
            return translator
        along = torch.nn.functional.normalize(torch.randn(model.config.d_model), dim=0)
        norm.bias += 4 * along
        model.output.weight[list(specials.never_produced)] = -2 * along
        model.output.weight[specials.end] += end / 4 * along
    return translator


def write_checkpoint(translator: Translator, folder: Path) -> None:
    save_model(folder / "model.pt", translator.model)


def as_checkpoint(patch: pytest.MonkeyPatch, name: str, write=write_checkpoint) -> None:
    """Until the patch ends, the format of this name is a checkpoint of ours, which is soon written."""

    def opened(folder: Path, *_: object) -> Translator:
        return Translator(load_model(folder / "model.pt"), *load_vocabs(folder))

    patch.setitem(FORMATS, name, Format(name, "a checkpoint of ours"))
    patch.setitem(sys.modules, f"headgates.bridges.{name}", SimpleNamespace(write=write, open=opened))
