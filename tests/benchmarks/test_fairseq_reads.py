"""Where fairseq is not there, the benchmark says so before it exports anything. What it measures needs
fairseq itself."""

import sys

from benchmarks import fairseq_reads


def test_without_fairseq_it_is_one_line_that_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "fairseq", None)
    monkeypatch.setattr(sys, "argv", ["fairseq_reads.py", "a-run", "--out", str(tmp_path / "out.jsonl")])
    assert fairseq_reads.main() == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("fairseq_reads: error: fairseq cannot be imported here (")
    assert "docs/sources-fairseq.md" in error
    assert not list(tmp_path.iterdir())
