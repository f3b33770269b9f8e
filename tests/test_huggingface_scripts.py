"""The scripts on a tiny random Hugging Face folder, with a text of four lines: what they make is an ordinary run."""

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")

import analyze
import fit
import prune
import translate

PAIRS = [("the dog sleeps .", "der Hund schläft ."), ("a big cat", "eine Katze"), ("dogs sleep", "Hunde schlafen"), ("the cat", "Katze")]


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
    code, _, error = called(prune)(source, "--by", "gradient", "--step", "0.5", *words, "--threads", "1")
    assert code == 0, error
    runs = sorted((tmp_path / "runs").iterdir())
    assert [run.name.startswith("hf-tiny-marian") for run in runs] == [True, True]  # without a text, and with it
    (base,) = (run for run in runs if (run / "scores/gradient.json").is_file())
    code, _, error = called(analyze)(source, "--what", "confidence,lrp", "--examples", "1", *words, "--threads", "1")
    assert code == 0, error
    assert {path.stem for path in (base / "analysis/base").glob("*.json")} >= {"confidence", "lrp"}
    few = ("--finetune.epochs", "1", "--finetune.bleu-sentences", "0", "--systems", "base,l0,l0-removed,greedy", "--name", "gated")
    code, _, error = called(fit)("--base", source, "--gate", "l0", *few, *words, "--threads", "1")
    assert code == 0, error
    rows = json.loads((tmp_path / "runs/gated/result.json").read_text())["rows"]
    assert [row["system"] for row in rows] == ["base", "l0", "l0-removed", "greedy"]
    assert (tmp_path / "runs/gated/report.html").is_file()
