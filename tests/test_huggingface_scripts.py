"""The scripts on a tiny random Hugging Face folder, with a text of four lines: what they make is an ordinary
run."""

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")

from headgates.commands import analyze, compare, fit, prune, translate
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
    well(called(prune)(source, "--by", "importance", "--step", "0.5", *words, "--threads", "1"))
    runs = sorted((tmp_path / "runs").iterdir())
    assert [run.name.startswith("hf-tiny-marian") for run in runs] == [
        True,
        True,
    ]  # without a text, and with it
    (base,) = (run for run in runs if (run / "scores/importance.json").is_file())
    well(called(analyze)(source, "--what", "confidence,lrp", "--examples", "1", *words, "--threads", "1"))
    assert {path.stem for path in (base / "analysis/base").glob("*.json")} >= {"confidence", "lrp"}
    few = (
        "--finetune.epochs",
        "1",
        "--systems",
        "base,l0,l0-removed,importance",
        "--name",
        "gated",
    )
    well(called(fit)("--base", source, "--gate", "l0", *few, *words, "--threads", "1"))
    rows = json.loads((tmp_path / "runs/gated/result.json").read_text())["rows"]
    assert [row["system"] for row in rows] == ["base", "l0", "l0-removed", "importance"]
    assert (tmp_path / "runs/gated/report.html").is_file()


def test_methods_are_compared_on_a_folder_whose_base_is_evaluated_once(
    hf_folder, text, tmp_path, called, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    source, words = f"hf:{hf_folder('marian')}", ("--data", text, "--src", "en", "--tgt", "de")
    (tmp_path / "few.yaml").write_text("train: {bleu_sentences: 0}\n")
    few = (
        "--methods",
        "importance",
        "--heads",
        "3",
        "--finetune",
        "0,1",
        "--fit",
        "few.yaml",
        "--threads",
        "1",
    )
    code, out, error = called(compare)(source, *words, *few)
    assert code == 0, out + error
    (folder,) = (tmp_path / "runs").glob("compare-*")
    groups = json.loads((folder / "compare.json").read_text())["groups"]
    assert [(group["method"], group["heads"]) for group in groups if group["epochs"] == 0][1:] == [
        ("importance", 3)
    ]
    (base,) = (tmp_path / "runs").glob("hf-*")
    assert len(list(base.glob("evaluations/*/result.json"))) == 1, "not once for each run"
    assert [out.count(f"\n{name}: ") for name in ("base", "importance")] == [1, 1]
    code, _, error = called(compare)(source, "--methods", "importance", "--heads", "3", "--finetune", "0")
    assert code == 1
    assert "has no text of its own" in error
