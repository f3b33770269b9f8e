"""A small model with prime sizes and a padded batch for it; locks of runs in a folder of the tests' own."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.transformer import Transformer

SMALL = {"d_model": 21, "heads": 3, "ffn": 13, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, "embeddings": "tied-decoder"}

pytest_plugins = ["tests.tiny_language"]


@pytest.fixture(scope="session", autouse=True)
def locks_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test waits for a run that its user is making: locks lie in a cache folder of the session's. What others keep there stays found."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in {"MPLCONFIGDIR": "matplotlib", "PLAYWRIGHT_BROWSERS_PATH": "ms-playwright", "HF_HOME": "huggingface"}.items():
            if name not in os.environ and (cache / folder).is_dir():
                patch.setenv(name, str(cache / folder))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def called(monkeypatch, capsys) -> Callable[[ModuleType], Callable[..., tuple[int, str, str]]]:
    """called(script)(words...) -> (exit code, stdout, stderr) of a root script, in this process."""

    def of(script: ModuleType) -> Callable[..., tuple[int, str, str]]:
        def run(*words: object) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, words)])
            try:
                code = script.main()
            except SystemExit as stop:
                code = int(stop.code or 0)
            captured = capsys.readouterr()
            return code, captured.out, captured.err

        return run

    return of


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """A model in evaluation mode whose biases and norms are random too: zero biases would hide what is done to them."""

    def make(seed: int = 0, **settings) -> Transformer:
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(**{**SMALL, **settings}), source_vocab=23, target_vocab=19)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        return model.eval()

    return make


@pytest.fixture
def model(make_model) -> nn.Module:
    return make_model()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Sources (3, 7) and target inputs (3, 5), both with padding."""
    source = torch.tensor([[7, 5, 11, 4, 9, 13, 2], [8, 6, 22, 2, 0, 0, 0], [12, 4, 4, 17, 2, 0, 0]])
    target_in = torch.tensor([[1, 5, 7, 0, 0], [1, 18, 4, 9, 11], [1, 6, 0, 0, 0]])
    return source, target_in
