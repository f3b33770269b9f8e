"""export.py as its user meets it: the plain command, what it refuses and how, and that exporters do not flood
the terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.bridges.exported import open_exported, read_export
from headgates.commands import export
from headgates.configs.settings import SearchConfig
from headgates.gates import HeadMap, find_sites
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from tests.worlds.runs import assert_one_line, well, write_run
from tests.worlds.translators import as_checkpoint

ROOT = Path(__file__).parents[1]
TEXT = {
    "en": ["the dog sleeps .", "dogs sleep", "the cat"] * 2,
    "de": ["der Hund schläft .", "Hunde", "x"] * 2,
}


@pytest.fixture
def run(tmp_path, make_translator) -> RunFolder:
    """A finished run of an untrained model, with gates of which half are closed, and its text."""
    (tmp_path / "text").mkdir()
    for part in ("train", "valid", "test"):
        for language, lines in TEXT.items():
            (tmp_path / f"text/{part}.{language}").write_text("\n".join(lines) + "\n")
    search = SearchConfig(beam=2, max_ratio=1.0, max_extra=3, batch_tokens=53)
    translator = make_translator(joint=True, search=search, encoder_layers=1, decoder_layers=1)
    closed = HeadMap({site: [0.0, 1.0] for site in find_sites(translator.model)})
    data = {"data": str(tmp_path / "text"), "src": "en", "tgt": "de"}
    return write_run(tmp_path / "runs/tiny-en-de-l0-s1", translator, closed, **data)


@pytest.fixture
def soon(monkeypatch):
    """The format onnx writes a checkpoint, which takes no time."""
    as_checkpoint(monkeypatch, "onnx")


@pytest.fixture
def export_here(called):
    """export_here(words...) -> (exit code, stdout, stderr)."""
    return called(export)


# ---------------------------------------------------------------- what it writes


def test_the_plain_command_writes_the_runs_own_model(run, export_here, soon):
    code, out, error = export_here(run.path, "--to", "onnx")
    assert (code, error) == (0, "")
    folder = run / "exported/l0-onnx"
    assert "tiny-en-de-l0-s1: l0 to onnx, checked on 6 sentences" in out
    assert "identical translations, greedy: 6 of 6\nidentical translations, beam 2: 6 of 6\n" in out
    assert re.search(
        rf"^{re.escape(str(folder))}: 0\.\d MB; \S+ translate\S* {re.escape(str(folder))} uses it$",
        out,
        re.MULTILINE,
    )
    about = read_export(folder)
    assert {
        "run": "tiny-en-de-l0-s1",
        "system": "l0",
        "format": "onnx",
        "seed": 1,
    }.items() <= about.items()
    assert {"command", "commit", "device", "versions", "date"} <= about.keys()
    assert about["architecture"]["heads"] == {
        "encoder.0.enc-self": 1,
        "decoder.0.dec-self": 1,
        "decoder.0.cross": 1,
    }
    assert open_exported(folder).translate(TEXT["en"]) == open_source(run.path).translator.translate(
        TEXT["en"]
    )
    well(export_here(run.path, "--to", "onnx", "--system", "base"))
    assert read_export(run / "exported/base-onnx")["architecture"]["heads"] == {}  # of those that lost some


def test_onnx_comes_with_no_words_but_ours(run):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    words = [sys.executable, str(ROOT / "export.py"), str(run.path), "--to", "onnx", "--threads", "1"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
        env={**os.environ, "COLUMNS": "140"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 5
    assert set(read_export(run / "exported/l0-onnx")["files"]) == {
        "encoder.onnx",
        "decoder.onnx",
        "vocab.model",
    }


# ---------------------------------------------------------------- what it refuses


def test_neither_a_format_nor_a_report_is_nothing_to_do(run, export_here):
    code, _, error = export_here(run.path)
    assert code == 2
    assert "nothing to do: give --to onnx, ct2, hf, fairseq, marian, or --report speed" in error
    assert "--report writes no model" in export_here(run.path, "--to", "onnx", "--report", "speed")[2]


@pytest.mark.parametrize("result", [{"system": "l0", "finished": False}, None])
def test_an_unfinished_run_says_how_to_finish_it(run, export_here, result):
    (run / "result.json").unlink()
    if result is not None:
        run.write_json("result.json", result)
    code, _, error = export_here(run.path, "--to", "onnx")
    assert code == 1
    assert_one_line(error, "is not finished; the command in its command.txt with --resume continues it")
