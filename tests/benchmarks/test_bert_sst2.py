"""The page of Michel et al.'s claims on an encoder, from files made by hand."""

import sys

import pytest

from benchmarks import bert_sst2
from benchmarks.bert_sst2 import half_the_heads, some_then_sharp, speedups
from benchmarks.claims import CLAIMS, Findings
from headgates.workbench.folder import RunFolder
from headgates.workbench.table import write_table

JUDGE = {claim.number: claim.judge for claim in CLAIMS}


def curve(*accuracy: float, p: float = 0.5) -> list[dict]:
    """A step of 20% for each accuracy, from 0."""
    return [
        {
            "seed": None,
            "closed_share": i / 5,
            "heads_closed": 2 * i,
            "test_accuracy": value,
            "test_accuracy_p_value": p,
        }
        | {"test_accuracy_difference": value - accuracy[0]}
        for i, value in enumerate(accuracy)
    ]


def head(number: int, difference: float, p: float) -> dict:
    p_values = {
        "p_value": p,
        "p_value_holm": min(1.0, 2 * p),
        "p_sacrebleu": p,
        "p_mcnemar": p,
        "p_half_samples": p,
    }
    return {
        "site": "encoder.0.enc-self",
        "kind": "enc-self",
        "layer": 0,
        "head": number,
        "accuracy_difference": difference,
        **p_values,
    }


def speed(**seconds: dict[int, float]) -> dict:
    """A report of one length with two rounds of the same seconds, by system and batch; 32 sentences a batch
    size."""
    rows = [
        {"system": system, "beam": 1, "length": "short", "batch": batch, "sentences": 32, "seconds": [s, s]}
        for system, of_batch in seconds.items()
        for batch, s in of_batch.items()
    ]
    return {"rows": rows, "heads": {"closed": 36, "total": 72}}


DENSE = {1: 4.0, 4: 2.0, 16: 1.2, 64: 1.2}
GAINS = speed(dense=DENSE, masked=DENSE, removed={1: 4.0, 4: 2.0, 16: 1.0, 64: 0.8})


def test_accuracy_takes_the_place_of_bleu_in_the_claims():
    rows = [head(i, -0.1, 0.5) for i in range(15)]
    found = Findings("x", "accuracy", "accuracy", one=[*rows, head(15, 0.4, 0.001)])
    assert JUDGE["C1"](found).summary == "holds"
    assert "1 removals improve accuracy at raw p < .01" in str(JUDGE["C2"](found))


def test_accuracy_falls_when_more_than_half_of_what_is_above_guessing_is_gone():
    def words(*accuracy: float, p: float = 0.5) -> str:
        return some_then_sharp(
            Findings("x", "accuracy", "accuracy", {"gradient": curve(*accuracy, p=p)}), 50.0
        ).summary

    assert words(90, 90, 89, 80, 69, 50) == "holds"
    assert words(90, 90, 89, 80, 71, 50) == "holds in part"
    assert words(90, 90, 80, 75, 71, 50, p=0.001) == "does not hold here"


def test_a_gain_at_large_batches_alone_is_the_papers():
    assert {batch: times["median"] for batch, times in speedups(GAINS).items()} == pytest.approx(
        {1: 1, 4: 1, 16: 1.2, 64: 1.5}
    )
    assert half_the_heads(GAINS).summary == "holds"
    assert (
        half_the_heads(speed(dense=DENSE, removed={1: 3.0, 4: 2.0, 16: 1.0, 64: 0.8})).summary
        == "holds in part"
    )
    assert half_the_heads(speed(dense=DENSE, removed=DENSE | {1: 3.0})).summary == "does not hold here"
    assert half_the_heads({}) is None


def test_the_page_holds_the_claims_the_gates_and_the_speed_and_copies_the_files(tmp_path, monkeypatch):
    base, gated = RunFolder(tmp_path / "runs/base"), RunFolder(tmp_path / "runs/gated")
    base.write_text("config.yaml", "task: classify\nencoder: ../encoders/mini\n")
    stage = {"losses": [0.5, 0.25], "epochs": 2, "seconds": 120.0}
    own = {
        "system": "base",
        "heads_open": 72,
        "heads_total": 72,
        "heads_by_kind": {"enc-self": 72},
        "parameters": 1234,
        "stage": stage,
    }
    made = {
        "seed": 7,
        "commit": "abc",
        "device": "a CPU",
        "data": {"train": {"pairs": 6920}, "vocabulary": {"labels": 2}},
    }
    base.write_json("result.json", {"rows": [own | {"accuracy": 91.25, "accuracy_signature": "s"}], **made})
    write_table(base, "curves/gradient.csv", curve(90, 90, 89, 80, 69, 50))
    chosen = {"heads_closed": 4, "closed_share": 0.4, "test_accuracy": 89.0, "test_accuracy_difference": -1.0}
    chosen |= {"test_accuracy_difference_low": -2.0, "test_accuracy_difference_high": 0.1}
    settings = {"order": "gradient", "kinds": ["enc-self", "dec-self", "cross"]}
    base.write_json("curves/gradient.json", {"finished": True, "chosen": chosen, "settings": settings})
    write_table(base, "ablation/one.csv", [head(0, -0.1, 0.5), head(1, -3.0, 0.001)])
    base.write_json("speed/report.json", GAINS)
    gated.write_text("config.yaml", "task: classify\nlambda: 0.003\n")
    learned = own | {
        "system": "l0",
        "heads_open": 30,
        "reference": "base",
        "accuracy": 90.0,
        "accuracy_signature": "s",
    }
    learned |= {
        "accuracy_difference": -1.25,
        "accuracy_difference_ci95": [-2, -0.5],
        "accuracy_p_value": 0.02,
        "accuracy_p_sacrebleu": 0.01,
    }
    gated.write_json("result.json", {"rows": [learned | {"accuracy_p_mcnemar": 0.0314}], **made})
    monkeypatch.setattr(
        sys, "argv", ["bert_sst2", str(base.path), str(gated.path), "--out", str(tmp_path / "results")]
    )
    assert bert_sst2.main() == 0
    page = (tmp_path / "results/bert-sst2.md").read_text()
    assert all(f"| {number} |" in page for number in ("C1", "C2", "C5", "C9"))
    assert "| `base` | 91.25 | 1,234 | 72 | 0.250 | 2 | 2 | 7 | abc |" in page
    assert "| 40% | 89.00 (-1.00) |" in page
    assert "| 0.003 | l0 | 30/72 | 90.00 | -1.25 | -2.00 to -0.50 | 0.020 | 0.031 |" in page
    assert "36 of 72 heads closed" in page
    copied = {
        str(path.relative_to(tmp_path / "results/bert-sst2"))
        for path in (tmp_path / "results/bert-sst2").rglob("*.*")
    }
    assert {"base/curves/gradient.csv", "base/speed/report.json", "gated/result.json"} <= copied


def test_a_run_without_prune_pys_tables_is_one_line(tmp_path, monkeypatch, capsys):
    RunFolder(tmp_path / "base").write_text("config.yaml", "task: classify\n")
    monkeypatch.setattr(sys, "argv", ["bert_sst2", str(tmp_path / "base"), "--out", str(tmp_path)])
    assert bert_sst2.main() == 1
    assert "has no curves and no ablations" in capsys.readouterr().err
