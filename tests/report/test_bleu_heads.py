"""What `sweep.py pareto` writes: the same rows as CSV and Markdown, the figure, what made them, copies; whole
or not at all."""

import json
from pathlib import Path

from headgates.records.folder import RunFolder, find_runs
from headgates.records.run_rows import finished_runs, run_rows
from headgates.records.table import read_table
from headgates.report import bleu_heads
from headgates.report.bleu_heads import write_bleu_heads
from tests.records.test_run_rows import measured, sweep, write

ROOT = Path(__file__).resolve().parents[2]
ENDS = ("csv", "md", "png", "svg", "json")
__all__ = ["sweep"]


def silent(line: str) -> None:
    """Where nobody listens."""


def parts(folder):
    runs = finished_runs(find_runs(folder), report=silent)
    return runs, run_rows(runs)


def test_the_files_are_tables_a_figure_and_what_made_them_and_no_more(sweep, tmp_path):
    out = tmp_path / "new" / "out"
    paths = write_bleu_heads(find_runs(sweep), out, title="toy", report=silent)
    assert paths == [out / f"pareto.{end}" for end in ENDS]
    assert sorted(out.iterdir()) == sorted(paths)
    made = json.loads(paths[-1].read_text(encoding="utf-8"))
    assert {"command", "commit", "device", "versions", "date"} <= made.keys()
    assert made["runs"].keys() == {folder.path.name for folder in find_runs(sweep)}
    assert all({"command", "commit", "seed", "versions"} <= run.keys() for run in made["runs"].values())
    assert read_table(RunFolder(out), "pareto.csv") == parts(sweep)[1]


def test_the_markdown_table_has_the_rows_of_the_csv_their_signatures_and_runs(sweep, tmp_path):
    row = measured("l0", 5, 30.25, bleu_signature="nrefs:1|x", chrf_signature="nc:6|y")
    facts = {"command": "python fit.py --lambda 0.5", "commit": "abc123", "versions": {"python": "3.11"}}
    write(
        sweep, "toy-l0-0.5-s1", [row], lam=0.5, base="toy-none-s1", data={"description": "made up"}, **facts
    )
    write_bleu_heads(find_runs(sweep), tmp_path, title="toy", report=silent)
    text = (tmp_path / "pareto.md").read_text(encoding="utf-8")
    assert text.count("\n| learned gates by λ | ") == 4
    gates = "| learned gates by λ | 0.5 | 18/23 | 7 | 5 | 6 |"
    assert f"{gates} 30.25 | 29.2 to 32.2 | 50.25 | -0.75 | -1.75 to +0.25" in text
    unpruned = "| unpruned, trained as long |  | 23/23 | 7 | 5 | 11 |"
    assert f"{unpruned} 31.00 | 30.0 to 33.0 | 51.00 | reference |" in text
    assert "- `nc:6|y`\n- `nrefs:1|x`" in text
    assert "over 3 test sentences; search: beam 5" in text


def test_a_recorded_table_can_still_be_read_and_drawn(tmp_path, monkeypatch):
    path = ROOT / "results/toy-en-de.csv"
    rows = read_table(RunFolder(path.parent), path.name)
    assert {row["system"] for row in rows} > {"base", "base-continued", "importance"}
    bleu_heads.draw_bleu_heads(rows, tmp_path / "figure")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_runs_of_a_task_without_search_are_a_table_of_its_own_metrics(tmp_path):
    row = {key.replace("bleu", "accuracy"): value for key, value in measured("base", 0, 93.5).items()}
    row = {key: value for key, value in row.items() if "chrf" not in key}
    row |= {"accuracy_signature": "acc", "reference": "base", "evaluation": {"test_digest": "d1"}}
    config = {"task": "classify"}
    run = write(tmp_path, "labels-none-s1", [row], system="base", config=config)
    write_bleu_heads([run], tmp_path / "out", title="labels", report=silent)
    text = (tmp_path / "out/pareto.md").read_text(encoding="utf-8")
    assert "| 95% | accuracy against the reference | 95% | p |" in text
    assert "test sentences. Parameters" in text
