"""translate.py on a folder that export.py wrote; the model behind it is a stand-in, the formats have tests of
their own."""

import json
import sys
from types import SimpleNamespace

import pytest

import headgates.bridges.exported
from headgates.commands import translate
from headgates.configs.settings import SearchConfig
from headgates.data.special_tokens import SpecialTokens


class Shouting:
    """An exported model whose words are pieces."""

    max_positions = None

    def __init__(self):
        self.search = SearchConfig(beam=2)
        self.source_vocab = SimpleNamespace(
            encode=lambda lines: [line.split() for line in lines], specials=SpecialTokens()
        )

    def translate_n_best(self, lines, *, beam=None, length_penalty=None):
        text = f"{{}} (beam {beam}, {self.search.batch_tokens} tokens)"
        return [[SimpleNamespace(text=text.format(line.upper()), score=0.0, log_prob=0.0)] for line in lines]


@pytest.fixture
def exported(tmp_path, monkeypatch) -> Shouting:
    """What opening tmp_path/exported gives."""
    model = Shouting()
    monkeypatch.setattr(headgates.bridges.exported, "open_exported", lambda folder, **_: model)
    (tmp_path / "exported").mkdir()
    (tmp_path / "in.txt").write_text("the dog\nthe big big dog\n")
    (tmp_path / "exported/export.json").write_text(
        json.dumps({"format": "onnx", "sha256": {}, "search": {}, "architecture": {}})
    )
    return model


@pytest.fixture
def translate_here(exported, tmp_path, monkeypatch, capsys):
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(
            sys,
            "argv",
            ["translate.py", str(tmp_path / "exported"), "--input", str(tmp_path / "in.txt"), *words],
        )
        return translate.main(), *capsys.readouterr()

    return run


def test_an_exported_folder_translates_with_its_own_settings_and_those_given(translate_here):
    code, out, error = translate_here("--beam", "3", "--batch-tokens", "7", "--quiet")
    assert (code, error) == (0, "")
    assert out == "THE DOG (beam 3, 7 tokens)\nTHE BIG BIG DOG (beam 3, 7 tokens)\n"
    assert translate_here("--quiet")[1].startswith("THE DOG (beam 2, 7 tokens)\n")


@pytest.mark.parametrize(("flag", "value"), [("--system", "l0"), ("--device", "cpu")])
def test_an_exported_folder_has_one_system_on_its_own_device(translate_here, flag, value):
    code, out, error = translate_here(flag, value)
    assert (code, out) == (1, "")
    assert f"{flag} {value}" in error
    assert "is an exported model" in error


def test_a_line_longer_than_the_exported_positions_is_named(exported, translate_here):
    exported.max_positions = 4
    code, out, error = translate_here()
    assert code == 1
    assert out.startswith("THE DOG")
    assert "in.txt, line 2 has 4 pieces, more than the 3 that the model has positions for" in error
