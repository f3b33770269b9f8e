"""Translators exported to every format, each once, and a place to run what was exported alone."""

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

from headgates.bridges import steps
from headgates.bridges.formats import export
from headgates.models.checkpoint import architecture
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from tests.worlds.small_model import LIBRARIES
from tests.worlds.translators import SOURCES, TARGETS


@dataclass
class Case:
    """A translator, the folder it was exported to and what export.json says."""

    translator: Translator
    folder: Path
    about: dict[str, Any]


M2M = {"positions": "tensor2tensor", "first_position": 2, "decoder_ffn": 17}
CASES = {  # with settings that other libraries' models have
    "uneven": {
        "closed": "uneven",
        "max_positions": 61,
        "embeddings": "tied-decoder",
        "output_bias": True,
        **LIBRARIES["as BART"],
    },
    "empty layers": {
        "closed": "empty layers",
        "joint": True,
        "embeddings": "tied",
        "encoder_layers": 1,
        **M2M,
    },
    "all": {"closed": "all", "encoder_layers": 1, "decoder_layers": 1, **LIBRARIES["pre, post"]},
    "ssru": {
        "decoder_mixer": "ssru",
        "norm": "post",
        "encoder_layers": 1,
        "positions": "sinusoidal-halves",
        "activation": "swish",
    },
}


@pytest.fixture(scope="session")
def traced_once() -> Callable[[Transformer], dict[str, steps.Program]]:
    """`trace` of one model for all formats: tracing is what takes the time. Here models of the same
    architecture have the same weights."""
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
    modules = {"torch": "torch_export", "onnx": "onnx"}
    cases: dict[tuple[str, str], Case] = {}

    def find(format: str, name: str) -> Case:
        if (format, name) not in cases:
            translator = make_translator(**CASES[name])
            folder = tmp_path_factory.mktemp(f"{format}-{name}") / "out"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(import_module(f"headgates.bridges.{modules[format]}"), "trace", traced_once)
                about = export(
                    translator,
                    format,
                    folder,
                    lines=SOURCES,
                    references=TARGETS,
                    facts={"run": "toy", "system": name},
                )
            cases[format, name] = Case(translator, folder, about)
        return cases[format, name]

    return find


@pytest.fixture
def alone(tmp_path):
    """alone(folder, code): the numpy arrays that code saves in out.npz, run where only a copy of the exported
    folder and the packages of this environment are: no code of ours."""

    def run(folder: Path, code: str) -> dict[str, np.ndarray]:
        copy = shutil.copytree(folder, tmp_path / "elsewhere")
        words = [sys.executable, "-I", "-c", code]
        done = subprocess.run(words, cwd=copy, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        with np.load(copy / "out.npz") as found:
            return dict(found)

    return run
