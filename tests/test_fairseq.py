"""A checkpoint of fairseq through the scripts, as a user calls them, and out again."""

import shutil
from pathlib import Path

import pytest

from headgates.bridges.exported import open_exported
from headgates.commands import analyze, export, prune
from headgates.configs.source import SourceOptions
from headgates.data import load_corpus
from headgates.records.source import open_source
from tests.worlds.runs import well

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "../shared/fixtures/fairseq/tiny_full"
SOURCE = f"fairseq:{FIXTURE}/checkpoint_best.pt"
pytestmark = pytest.mark.skipif(not FIXTURE.is_dir(), reason="needs ../shared/fixtures/fairseq")


@pytest.fixture
def text(tmp_path, monkeypatch) -> str:
    """Its test set as binarised training, validation and test text; what scripts write goes into the same
    folder."""
    pytest.importorskip("subword_nmt", reason="subword-nmt is not installed")
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(FIXTURE / "binarized", tmp_path / "bin")
    for path in sorted(folder.glob("test.*")):
        for split in ("train", "valid"):
            shutil.copyfile(path, path.with_name(path.name.replace("test", split)))
    return f"fairseq:{folder}"


def test_its_heads_are_pruned_and_looked_at_and_it_goes_out_as_it_came_in(text, called, tmp_path):
    options = ["--data", text, "--threads", "1"]
    few = ["--set", "sentences=11", "--test-sentences", "5"]
    well(called(prune)(SOURCE, *options, "--by", "importance", "--heads", "2", *few))
    well(called(analyze)(SOURCE, *options, "--what", "confidence,lrp", "--sentences", "5", "--examples", "1"))
    (run,) = (tmp_path / "runs").glob("fairseq-*")
    assert (run / "scores").is_dir()
    assert len([*(tmp_path / "runs").glob("*importance-2-s1")]) == 1
    assert (run / "report.html").is_file()
    out = well(
        called(export)(SOURCE, *options, "--to", "fairseq", "--sentences", "5", "--out", tmp_path / "out")
    )
    assert "identical translations, beam 5: 5 of 5" in out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "checkpoint.pt", "dict.en.txt", "dict.de.txt", "bpe.codes.en", "bpe.codes.de", "export.json",
    }  # fmt: skip
    for language in ("en", "de"):
        assert (tmp_path / f"out/dict.{language}.txt").read_bytes() == (
            FIXTURE / f"dict.{language}.txt"
        ).read_bytes()
    corpus = load_corpus(text)
    lines = corpus.test.sources[:7], corpus.test.targets[:7]
    back = open_source(
        f"fairseq:{tmp_path}/out/checkpoint.pt", options=SourceOptions(runs=str(tmp_path / "runs"))
    )
    expected = open_source(run).translator.score(*lines)
    assert back.translator.score(*lines) == expected == open_exported(tmp_path / "out").score(*lines)


def test_text_without_the_split_that_is_needed_is_one_line(called, tmp_path, monkeypatch):
    pytest.importorskip("subword_nmt", reason="subword-nmt is not installed")
    monkeypatch.chdir(tmp_path)
    code, _, error = called(prune)(
        SOURCE,
        "--data",
        f"fairseq:{FIXTURE}/binarized",
        "--by",
        "importance",
        "--heads",
        "2",
        "--threads",
        "1",
    )
    assert code == 1
    assert error.strip().splitlines()[-1] == "prune.py: error: binarized has no 'valid' text; it has test"


def test_a_broken_checkpoint_is_one_line_and_leaves_no_run(called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"no checkpoint")
    code, _, error = called(prune)(
        "fairseq:model.pt", "--data", "toy", "--src", "en", "--tgt", "de", "--threads", "1"
    )
    assert code == 1
    assert "prune.py: error: model.pt is not a whole checkpoint" in error.strip().splitlines()[-1]
    assert not list(tmp_path.glob("runs/*"))
