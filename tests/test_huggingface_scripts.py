"""The scripts on a tiny random Hugging Face folder, with a text of four lines: what they make is an ordinary
run."""

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")

from headgates.commands import analyze, prune, translate
from tests.worlds.runs import well

PAIRS = [
    ("the dog sleeps .", "der Hund schläft ."),
    ("a big cat", "eine Katze"),
    ("dogs sleep", "Hunde schlafen"),
    ("the cat", "Katze"),
]


@pytest.fixture
def text(tmp_path):
    """A folder with four lines in each split."""
    folder = tmp_path / "four"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for side, lines in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_folder_is_translated_pruned_explained_and_gated(hf_folder, text, tmp_path, called, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, words = f"hf:{hf_folder('marian')}", ("--data", text, "--src", "en", "--tgt", "de")
    code, out, error = called(translate)(source, "--input", text / "test.en", "--threads", "1")
    assert (code, len(out.splitlines())) == (0, 4), error
    well(called(prune)(source, "--by", "importance", "--heads", "3", *words, "--threads", "1"))
    runs = sorted((tmp_path / "runs").iterdir())
    assert (
        len([run for run in runs if run.name.startswith("hf-tiny-marian")]) == 2
    )  # without a text, and with it
    (base,) = (run for run in runs if (run / "scores/importance.json").is_file())
    well(called(analyze)(source, "--what", "confidence,lrp", "--examples", "1", *words, "--threads", "1"))
    assert {path.stem for path in (base / "analysis/base").glob("*.json")} >= {"confidence", "lrp"}
    few = ("--by", "l0,importance", "--heads", "3", "--epochs", "1")
    code, out, error = called(prune)(source, *few, *words, "--threads", "1")
    assert code == 0, out + error
    rows = [
        json.loads(path.read_text())["rows"] for path in (tmp_path / "runs").glob("*-3-e1-s1/result.json")
    ]
    assert [[row["system"] for row in each] for each in rows] == [["base", "base-continued", "pruned"]] * 2
    assert {each[-1]["heads_open"] for each in rows} == {3}
    assert len(list(base.glob("evaluations/*/result.json"))) == 1, "evaluated once, not for each run"
    code, _, error = called(prune)(source, "--by", "importance", "--heads", "3")
    assert code == 1
    assert "has no text of its own" in error
