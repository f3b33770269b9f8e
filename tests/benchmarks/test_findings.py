"""The page of the eighteen claims: what stands in docs/ is what the records make, and records made by hand
are read as they say."""

import csv
import json
import shutil
import sys

import pytest

from benchmarks import findings
from benchmarks.findings_bases import read_bases
from benchmarks.papers_numbers import PUBLISHED, nearest
from benchmarks.records import read_comparison, read_results
from headgates.workbench.folder import RunFolder
from headgates.workbench.table import write_table
from tests.test_readme import problem

RESULTS, PAGE = findings.ROOT / "results", findings.ROOT / "docs/findings.md"
KINDS = ["enc-self", "dec-self", "cross"]


def planted_comparison(folder: RunFolder, *, leads: bool = True) -> None:
    """Two seeds of learned gates and of greedy, trained for 3 epochs, at 9 and 8 of 24 heads asked;
    greedy-stream without training."""
    base = {
        "method": "base",
        "closing": "zero",
        "epochs": 0,
        "seed": 0,
        "heads_asked": 24,
        "lambda": None,
        "heads_open": 24,
    }
    base |= {"heads_total": 24, "enc-self": 8, "dec-self": 8, "cross": 8}
    rows = [base]
    for method, closing, epochs, left in (
        ("l0-target", "zero", 3, (1, 3, 5)),
        ("greedy", "stream", 0, (3, 3, 3)),
    ):
        for seed in (1, 2):
            row = base | {
                "method": method,
                "closing": closing,
                "epochs": epochs,
                "seed": seed,
                "heads_asked": 9,
                "heads_open": 9,
            }
            rows.append(row | dict(zip(KINDS, left, strict=True)))
    write_table(folder, "compare.csv", rows)
    group = {
        "method": "base",
        "learned": False,
        "epochs": 0,
        "heads": 24.0,
        "seeds": 1,
        "value": 30.0,
        "difference": None,
    }
    ours = group | {
        "method": "l0-target",
        "learned": True,
        "epochs": 3,
        "heads": 9.0,
        "seeds": 2,
        "value": 29.0,
        "difference": -1.0,
    }
    ours |= {"difference_low": -1.5, "difference_high": -0.25}
    theirs = ours | {
        "method": "greedy-stream",
        "learned": False,
        "epochs": 0,
        "value": 20.0,
        "difference": -10.0,
    }
    content = {"kinds": KINDS, "command": "python compare.py runs/planted", "groups": [group, ours, theirs]}
    lead = {
        "method": "l0-target",
        "against": "greedy",
        "epochs": 3,
        "heads": 9,
        "difference": 0.5,
        "difference_low": 0.25,
    }
    folder.write_json(
        "compare.json", content | ({"leads": [lead | {"difference_high": 0.75}]} if leads else {})
    )


def test_the_page_is_what_the_records_make():
    assert PAGE.read_text(encoding="utf-8") == findings.page(RESULTS, PAGE), (
        "python -m benchmarks.findings writes it"
    )


def test_numbers_of_the_page_stand_in_the_records():
    """Read without our readers: a single head, a point of a comparison, a role."""
    text = PAGE.read_text(encoding="utf-8")
    with open(
        RESULTS / "michel/multi30k-en-de-none-s1/ablation/one.csv", encoding="utf-8", newline=""
    ) as file:
        row = min(csv.DictReader(file), key=lambda row: float(row["bleu_difference"]))
    numbers = [float(row[name]) for name in ("bleu_difference", "difference_low", "difference_high")]
    assert "`{}.{}`: {:+.2f} BLEU ({:+.2f} to {:+.2f})".format(row["site"], row["head"], *numbers) in text
    result = json.loads(
        (RESULTS / "multi30k-en-de/multi30k-en-de-l0-0.1-s1.json").read_text(encoding="utf-8")
    )
    row = next(row for row in result["rows"] if row["system"] == "l0")
    low, high = row["bleu_difference_ci95"]
    assert (
        f"14 of 72 heads, l0 +6 epochs: {row['bleu_difference']:+.2f} ({low:+.2f} to {high:+.2f}) BLEU"
        in text
    )


def test_every_claim_has_a_row_and_a_section_and_what_is_not_run_a_command():
    text = PAGE.read_text(encoding="utf-8")
    for number in range(1, 19):
        assert f"| [C{number}](#c{number}) |" in text
        assert f"\n## C{number}\n" in text
    for base in read_bases(RESULTS):
        assert {
            number for number, claim in base.claims.items() if claim.judge(base.findings) is None
        } <= base.missing.keys()


@pytest.mark.parametrize(
    "how", sorted({how for base in read_bases(RESULTS) for how in base.missing.values()})
)
def test_the_command_for_what_was_not_run_can_be_typed(how):
    assert problem(how.split("`")[1].replace(" --fit FILE", "")) == ""


def test_a_comparison_is_read_over_its_seeds_with_its_leads(tmp_path):
    planted_comparison(RunFolder(tmp_path))
    (ours, theirs), leads = read_comparison(tmp_path)
    assert (ours.method, ours.learned, ours.epochs, ours.heads, ours.total, ours.seeds) == (
        "l0-target",
        True,
        3,
        9,
        24,
        2,
    )
    assert (ours.difference, ours.interval, ours.by_kind, ours.kinds["cross"]) == (
        -1.0,
        (-1.5, -0.25),
        {"enc-self": 1, "dec-self": 3, "cross": 5},
        8,
    )
    assert (theirs.method, theirs.by_kind["enc-self"]) == ("greedy-stream", 3)
    assert leads["l0-target", "greedy", 3, 9].interval == (0.25, 0.75)
    planted_comparison(RunFolder(tmp_path), leads=False)  # of an earlier version
    assert read_comparison(tmp_path)[1] == {}
    assert read_comparison(tmp_path / "none") == ([], {})


def test_a_result_gives_gates_scores_and_the_same_heads_from_scratch(tmp_path):
    def row(system: str, heads: int, difference: float, epochs: int | None = 4) -> dict:
        stage = None if epochs is None else {"epochs": epochs, "losses": [1.0], "best_epoch": 0}
        measures = {"bleu": 30 + difference, "bleu_signature": "s", "bleu_p_sacrebleu": 0.5}
        measures |= {"bleu_difference": difference, "bleu_difference_ci95": [difference - 1, difference + 1]}
        by_kind = {"heads_by_kind": {"cross": heads}, "heads_by_site": None, "heads_total": 24}
        return {"system": system, "heads_open": heads, "stage": stage, **by_kind, **measures}

    rows = [
        row("base", 24, 0.0, 30),
        row("l0-soft", 12, -9.0),
        row("l0", 9, -0.5),
        row("l0-removed", 9, -0.5, None),
    ]
    rows += [row("greedy", 9, -8.0, None), row("greedy-finetuned", 9, -1.0), row("l0-scratch", 9, -2.0, 34)]
    RunFolder(tmp_path).write_json("gated.json", {"system": "l0", "rows": rows})
    RunFolder(tmp_path).write_json("base.json", {"system": "base", "rows": rows[:1]})
    points, ((gates, scratch),) = read_results(tmp_path.glob("*.json"))
    found = {(point.method, point.learned, point.epochs): point.difference for point in points}
    assert found == {("l0", True, 4): -0.5, ("greedy", False, 0): -8.0, ("greedy", False, 4): -1.0}
    assert (gates.difference, scratch.method, scratch.difference) == (-0.5, "l0-scratch", -2.0)


def test_new_records_are_judged(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("*.png", "*.svg"))
    planted_comparison(RunFolder(tmp_path / "results/compare-encoder-only"))
    base = read_bases(tmp_path / "results")[0]
    assert "1 of 8 encoder heads left: -1.00 (-1.50 to -0.25; 2 seeds)" in str(
        base.claims["C10"].judge(base.findings)
    )
    assert nearest(PUBLISHED[0], base) == "1 of 8: -1.00 (-1.50 to -0.25; 2 seeds), l0-target +3 epochs"
    text = findings.page(tmp_path / "results", tmp_path / "docs/findings.md")
    assert "python compare.py runs/planted" in text
    assert "](../results/compare-encoder-only/compare.json)" in text


def test_a_broken_record_is_one_line_and_the_old_page_stays(tmp_path, monkeypatch, capsys):
    (tmp_path / "results/compare-encoder-only").mkdir(parents=True)
    (tmp_path / "results/compare-encoder-only/compare.json").write_text("{")
    page = tmp_path / "findings.md"
    page.write_text("the old page")
    monkeypatch.setattr(sys, "argv", ["findings", "--results", str(tmp_path / "results"), "--out", str(page)])
    assert findings.main() == 1
    assert "findings: error:" in capsys.readouterr().err
    assert page.read_text() == "the old page"
