"""A wrong path on a command line is one line, said before torch is imported; sources of other libraries are
left to their readers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.records import foreign_source
from headgates.records.named_paths import check_run, check_writable

ROOT = Path(__file__).resolve().parents[2]
RUN = "examples/toy_run/toy-en-de-none-s1"
MISMATCHED = "MISMATCHED"  # a folder whose two training files have different numbers of lines
HEAVY = ("torch", "pytorch_lightning", "matplotlib")
BLANK = "MISMATCHED/blank.txt"
WRONG = [
    (["fit.py", "--data", "multi31k"], "did you mean 'multi30k'?"),
    (["fit.py", "--data", "docs"], "docs has no parallel text"),
    (["fit.py", "--data", MISMATCHED], "train.en has 2 lines and"),
    (["fit.py", "--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
    (
        ["prune.py", "examples/toy_run/toy-en-de-non-s1"],
        "did you mean 'examples/toy_run/toy-en-de-none-s1'?",
    ),
    (["prune.py", RUN, "--trim-vocabulary", BLANK], "there is no line with text in it"),
    (["fit.py", "--runs", "LICENSE"], "--runs: expected the folder of all runs, got the file LICENSE"),
    (["prune.py", "nowhere"], "no run at nowhere"),
    (["analyze.py", RUN, "nowhere"], "no run at nowhere"),
    (["analyze.py", RUN, "--text", "nofile"], "no file nofile"),
    (["analyze.py", RUN, "--examples-from", "docs"], "expected a file, got the folder docs"),
    (["translate.py", "nowhere", "--input", "LICENSE"], "no run at nowhere"),
    (["export.py", "nowhere", "--to", "onnx"], "no run at nowhere"),
]
STARTED = """
import contextlib, io, json, os, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    code, said = 0, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(open(os.devnull, "w")):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue().splitlines(), sorted({names!r} & set(sys.modules))]))
"""


def test_wrong_paths_and_text_are_found_before_torch_is_imported(tmp_path):
    for name in ("train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de"):
        (tmp_path / name).write_text("a dog\n" * (2 if name == "train.en" else 1))
    (tmp_path / "blank.txt").write_text(" \n\n")
    commands = json.dumps([words for words, _ in WRONG]).replace(MISMATCHED, str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", STARTED.format(names=set(HEAVY)), commands],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for (words, expected), said in zip(WRONG, done.stdout.splitlines(), strict=True):
        code, (line, *hint), imported = json.loads(said)
        assert line.startswith(f"{words[0]}")
        assert expected in line
        assert not hint or hint == [f"(see `python {words[0]} --help`)"]
        assert (imported, code in (1, 2)) == ([], True), words


def test_a_runs_folder_that_is_not_there_is_neither_made_nor_removed(tmp_path, monkeypatch):
    for touches in ("mkdir", "rmdir"):  # another command may be making a run there
        monkeypatch.setattr(Path, touches, lambda *_, **__: pytest.fail("the folder was touched"))
    check_writable(str(tmp_path / "new/runs"))
    with pytest.raises(OSError, match=r"cannot write in /dev/null/runs.*choose another folder with --runs"):
        check_writable("/dev/null/runs")


def test_a_source_of_another_library_is_let_through(monkeypatch):
    monkeypatch.setitem(foreign_source.SOURCES, "other", "somewhere:read")
    check_run("other:a/place")
    with pytest.raises(ValueError, match="no run at othr:a/place"):
        check_run("othr:a/place")


def test_an_exported_folder_is_a_source_where_it_may_be_one(tmp_path):
    (tmp_path / "export.json").write_text("{}")
    check_run(str(tmp_path), exported=True)
    with pytest.raises(ValueError, match="no run at"):
        check_run(str(tmp_path))
