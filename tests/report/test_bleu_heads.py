"""What `sweep.py pareto` writes: the same rows as CSV and Markdown, the figure, what made them, copies; whole
or not at all."""

import json
from pathlib import Path

import pytest

from headgates.report import bleu_heads
from headgates.report.bleu_heads import heads_shown, write_bleu_heads
from headgates.workbench.folder import RunFolder, find_runs
from headgates.workbench.run_rows import finished_runs, run_rows
from headgates.workbench.table import read_table
from tests.workbench.test_run_rows import measured, sweep, write

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
    assert text.count("\n| l0 | ") == 4
    assert (
        "| l0 | 0.5 | 18/23 | 7 | 5 | 6 | 30.25 | 29.2 to 32.2 | 50.25 | -0.75 | -1.75 to -0.25".replace(
            "-0.25", "+0.25"
        )
        in text
    )
    assert "| base-continued |  | 23/23 | 7 | 5 | 11 | 31.00 | 30.0 to 33.0 | 51.00 | reference |" in text
    assert "- BLEU `nrefs:1|x`\n- chrF `nc:6|y`" in text
    assert "| toy-l0-0.5-s1 | `python fit.py --lambda 0.5` | abc123 |" in text
    assert "3 sentences, beam 5" in text


def test_copies_are_the_results_and_none_is_written_that_names_a_machine(sweep, tmp_path):
    folders = find_runs(sweep)
    for folder in folders:
        folder.write_json(
            "result.json",
            {**folder.read_json("result.json"), "command": "python fit.py --lambda 3", "data": {}},
        )
    write_bleu_heads(folders, tmp_path / "out", title="toy", name="toy", copies=True, report=silent)
    copies = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "out/toy").iterdir()
    }
    assert copies == {folder.path.name: folder.read_json("result.json") for folder in folders}
    result = folders[0].read_json("result.json")
    folders[0].write_json(
        "result.json", {**result, "command": "python fit.py --data-dir " + "/" + "somewhere"}
    )
    with pytest.raises(ValueError, match=f"{folders[0].path.name} names a path of this machine"):
        write_bleu_heads(folders, tmp_path / "other", title="toy", copies=True, report=silent)
    assert not (tmp_path / "other").exists()


def test_the_heads_that_are_shown_are_those_of_the_lambda_or_the_fewest_near_the_reference(sweep):
    for folder in find_runs(sweep):
        folder.write_text(
            "config.yaml",
            (folder / "config.yaml").read_text()
            + "model: {encoder_layers: 1, decoder_layers: 1, heads: 2}\n",
        )
        folder.add_system(
            "l0", folder / "best.pt", {"encoder.0.enc-self": [float("0.01" in folder.path.name), 0.0]}
        )
    runs, rows = parts(sweep)
    auto = heads_shown(runs, rows, "auto")
    assert (
        auto[0] == "λ 0.01: the 18 open heads (full) of 23"
    )  # 5 heads closed at -0.75; 0.03 has lost 2 BLEU
    assert auto[1]["enc-self", 0] == [True, False]
    assert heads_shown(runs, rows, "0.03")[1]["enc-self", 0] == [False, False]
    with pytest.raises(
        ValueError, match=r"no run has lambda 7; --map takes auto or one of 0.003, 0.01, 0.03"
    ):
        heads_shown(runs, rows, "7")
    bases = [run for run in runs if not run.gated]
    with pytest.raises(ValueError, match="none of the runs has them"):
        heads_shown(bases, run_rows(bases), "auto")


def test_a_figure_that_fails_leaves_the_old_one_whole(sweep, tmp_path, monkeypatch):
    write_bleu_heads(find_runs(sweep), tmp_path, title="toy", report=silent)
    before = (tmp_path / "pareto.png").read_bytes()

    def full_disk(rows, path, **_):
        path.with_name("pareto.png").write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(bleu_heads, "draw_bleu_heads", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_bleu_heads(find_runs(sweep), tmp_path, title="toy", report=silent)
    assert (tmp_path / "pareto.png").read_bytes() == before
    assert not list(tmp_path.glob(".draft-*"))


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.csv")), ids=lambda path: path.stem)
def test_a_recorded_table_can_still_be_read_and_drawn(path, tmp_path, monkeypatch):
    monkeypatch.setattr("headgates.report.drawing.DOTS_PER_INCH", 40)
    rows = read_table(RunFolder(path.parent), path.name)
    assert {row["system"] for row in rows} > {"base", "base-continued", "greedy"}
    bleu_heads.draw_bleu_heads(rows, tmp_path / "figure")
    assert (tmp_path / "figure.png").stat().st_size > 1000
