"""Tiny translators of every architecture, with heads removed or gated, and lines for them."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.schema import ModelConfig, SearchConfig
from data.vocab import Vocab
from gates import HeadMap, find_sites, remove
from models.checkpoint import architecture
from models.formats import export, steps
from models.transformer import Transformer
from models.translator import Translator

SOURCES = ["the dog sleeps .", "", "a big cat sees the small dog .", "dogs sleep", "   ", "the cat"]
TARGETS = ["der Hund schläft .", "x", "", "Hunde schlafen", "eine Katze", "die Katze sieht den Hund ."]
SEARCH = SearchConfig(beam=3, max_ratio=1.0, max_extra=5, batch_tokens=29)  # so few tokens that lines come in several batches
SMALL = {"d_model": 22, "heads": 2, "ffn": 13, "encoder_layers": 2, "decoder_layers": 2, "embeddings": "separate", "dropout": 0.3}
SITES = ["encoder.0.enc-self", "encoder.1.enc-self", "decoder.0.dec-self", "decoder.1.dec-self", "decoder.0.cross", "decoder.1.cross"]
HEADS_CLOSED = {
    "none": [0, 0, 0, 0, 0, 0],
    "uneven": [1, 2, 1, 0, 0, 1],
    "empty layers": [2, 0, 2, 1, 0, 2],
    "all": [2, 2, 2, 2, 2, 2],
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
        name: Vocab.train([line for line in text if line.strip()] * 3, size=sizes[name], path=folder / f"{name}.model")
        for name, text in texts.items()
    }


@pytest.fixture(scope="session")
def make_translator(toy_vocabs) -> Callable[..., Translator]:
    """make_translator("uneven", joint=True, norm="post"): random weights, biases and norms, without the heads of HEADS_CLOSED."""

    def make(closed: str = "none", *, joint: bool = False, search: SearchConfig = SEARCH, seed: int = 0, **settings) -> Translator:
        torch.manual_seed(seed)
        source, target = (toy_vocabs["both"],) * 2 if joint else (toy_vocabs["src"], toy_vocabs["tgt"])
        model = Transformer(ModelConfig(**{**SMALL, **settings}), len(source), len(target))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        count = dict(zip(SITES, HEADS_CLOSED[closed], strict=True))
        remove(model, HeadMap({site: torch.arange(site.heads) < count[site.name] for site in find_sites(model)}))
        return Translator(model.eval(), source, target, search)

    return make


@dataclass
class Case:
    """A translator, the folder it was exported to and what export.json says."""

    translator: Translator
    folder: Path
    about: dict[str, Any]


CASES = {
    "uneven": {"closed": "uneven", "norm": "post", "positions": "learned", "max_positions": 61, "embeddings": "tied-decoder"},
    "empty layers": {"closed": "empty layers", "joint": True, "embeddings": "tied", "encoder_layers": 1},
    "all": {"closed": "all", "encoder_layers": 1, "decoder_layers": 1},
}


@pytest.fixture(scope="session")
def traced_once() -> Callable[[Transformer], dict[str, steps.Program]]:
    """`trace` of one model for all formats: tracing is what takes the time. Here models of the same architecture have the same weights."""
    known: dict[str, dict[str, steps.Program]] = {}

    def trace(model: Transformer) -> dict[str, steps.Program]:
        key = str(architecture(model))
        if key not in known:
            known[key] = steps.trace(model)
        return known[key]

    return trace


@pytest.fixture(scope="session")
def exported(make_translator, traced_once, tmp_path_factory) -> Callable[[str, str], Case]:
    """exported("onnx", "uneven"): the case in that format, written once."""
    modules = {"torch": "torch_program", "onnx": "onnx_graph"}
    cases: dict[tuple[str, str], Case] = {}

    def find(format: str, name: str) -> Case:
        if (format, name) not in cases:
            translator = make_translator(**CASES[name])
            folder = tmp_path_factory.mktemp(f"{format}-{name}") / "out"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(import_module(f"models.formats.{modules[format]}"), "trace", traced_once)
                about = export(translator, format, folder, lines=SOURCES, references=TARGETS, facts={"run": "toy", "system": name})
            cases[format, name] = Case(translator, folder, about)
        return cases[format, name]

    return find


@pytest.fixture
def alone(tmp_path):
    """alone(folder, code): the numpy arrays that code saves in out.npz, run where only a copy of the exported folder and the packages of
    this environment are: no code of ours."""

    def run(folder: Path, code: str) -> dict[str, np.ndarray]:
        copy = shutil.copytree(folder, tmp_path / "elsewhere")
        words = [sys.executable, "-I", "-c", code]
        done = subprocess.run(words, cwd=copy, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        with np.load(copy / "out.npz") as found:
            return dict(found)

    return run
