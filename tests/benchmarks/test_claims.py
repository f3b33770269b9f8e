"""The verdicts on the papers' claims, on rows made by hand, and the page that shows them."""

import sys

import pytest

from benchmarks import michel
from benchmarks.claims import CLAIMS, Findings, at_share
from headgates.workbench.folder import RunFolder
from headgates.workbench.table import write_table

JUDGE = {claim.number: claim.judge for claim in CLAIMS}


def head(kind: str, number: int, difference: float, p: float, holm: float = 1.0) -> dict:
    part = "encoder" if kind == "enc-self" else "decoder"
    site = f"{part}.0.{kind}"
    p_values = {"p_value": p, "p_value_holm": holm, "p_sacrebleu": p / 2, "p_half_samples": 10 * p}
    return {"site": site, "kind": kind, "layer": 0, "head": number, "bleu_difference": difference, **p_values}


def curve(*bleu: float, p: float = 0.5) -> list[dict]:
    """A step of 20% for each BLEU, from 0."""
    return [
        {
            "seed": None,
            "closed_share": i / 5,
            "heads_closed": 2 * i,
            "test_bleu": value,
            "test_bleu_difference": value - bleu[0],
            "test_bleu_p_value": p,
        }
        for i, value in enumerate(bleu)
    ]


def layer(kind: str, number: int, difference: float, p: float) -> dict:
    return {
        "site": f"decoder.{number}.{kind}",
        "kind": kind,
        "layer": number,
        "bleu_difference": difference,
        "p_value": p,
    }


def words(number: str, found: Findings) -> str:
    verdict = JUDGE[number](found)
    assert verdict is not None
    return verdict.summary


def test_few_significant_heads_support_the_first_claim_and_many_do_not():
    quiet = [head("enc-self", i, -0.1, 0.5) for i in range(16)]
    assert words("C1", Findings("x", one=quiet)) == "holds"
    assert (
        words("C1", Findings("x", one=[*quiet[3:], *(head("enc-self", i, -9.0, 0.0001) for i in range(3))]))
        == "does not hold here"
    )
    assert (
        words("C1", Findings("x", one=[*quiet, *(head("cross", i, -9.0, 0.0001) for i in range(16))]))
        == "holds in part"
    )


def test_the_first_claim_shows_what_other_tests_say_and_is_decided_by_the_two_sided_one():
    quiet = [head("enc-self", i, -0.1, 0.5) for i in range(14)]
    verdict = JUDGE["C1"](
        Findings("x", one=[*quiet, head("enc-self", 14, -1.0, 0.0009), head("enc-self", 15, -1.0, 0.015)])
    )
    assert str(verdict) == (
        "**holds**: 1 of 16 encoder heads are significant; "
        "1 of all 16 heads are (by sacreBLEU's p 2, by lost half samples, the authors' test, 1)"
    )


def test_an_improvement_counts_raw_and_adjusted():
    assert (
        words(
            "C2", Findings("x", one=[head("cross", 0, 0.3, 0.001, 0.2), head("cross", 1, -0.3, 0.001, 0.001)])
        )
        == "holds in part"
    )
    assert words("C2", Findings("x", one=[head("cross", 0, 0.3, 0.001, 0.005)])) == "holds"
    assert words("C2", Findings("x", one=[head("cross", 0, -0.3, 0.001, 0.005)])) == "does not hold here"


def test_the_last_cross_layer_must_lose_most():
    harmless = [layer("dec-self", i, -0.1, 0.3) for i in range(3)]
    assert (
        words(
            "C3",
            Findings(
                "x", all_but_one=[*harmless, layer("cross", 0, -1.0, 0.001), layer("cross", 1, -9.0, 0.001)]
            ),
        )
        == "holds"
    )
    assert words(
        "C3",
        Findings(
            "x", all_but_one=[*harmless, layer("cross", 0, -9.0, 0.001), layer("cross", 1, -1.0, 0.001)]
        ),
    ) == ("holds in part")


def test_curves_are_read_at_the_nearest_step_and_over_seeds():
    rows = curve(30.0, 29.0, 20.0) + curve(30.0, 27.0, 10.0)
    assert at_share(rows, 0.21, "test_bleu") == 28.0
    found = Findings(
        "x",
        curves={
            "gradient": curve(30.0, 29.9, 25.0, 9.0, 1.0, 0.0),
            "ablation": curve(30.0, 29.8, 20.0, 9.0, 2.0, 0.0),
        },
    )
    assert words("C5", found) == "holds"
    assert words("C6", found) == "holds"
    kinds = {
        f"gradient-{kind}": curve(30.0, 29.0, 28.0, 27.0, 26.0, 20.0) for kind in ("enc-self", "dec-self")
    }
    assert (
        words(
            "C7", Findings("x", curves={**kinds, "gradient-cross": curve(30.0, 25.0, 20.0, 10.0, 1.0, 0.0)})
        )
        == "holds"
    )


def test_dynamics_are_linear_first_and_flat_later():
    def epoch(number, relative):
        return [
            {"epoch": number, "closed_share": i / 10, "valid_bleu_relative": value}
            for i, value in enumerate(relative)
        ]

    straight, flat = [1 - i / 10 for i in range(10)], [1.0, 1.0, 1.0, 0.95, 0.9, 0.6, 0.3, 0.1, 0.0, 0.0]
    assert (
        words("C8", Findings("x", dynamics=[*epoch(1, straight), *epoch(2, straight), *epoch(15, flat)]))
        == "holds"
    )
    assert (
        words("C8", Findings("x", dynamics=[*epoch(1, flat), *epoch(2, flat), *epoch(3, flat)]))
        == "does not hold here"
    )


def test_what_was_not_run_has_no_verdict():
    assert [claim.judge(Findings("x")) for claim in CLAIMS] == [None] * len(CLAIMS)


def test_the_page_holds_every_claim_and_copies_the_tables(tmp_path, monkeypatch, capsys):
    folder = RunFolder(tmp_path / "toy-none")
    folder.write_text("config.yaml", "data: toy\n")
    rows = [head("enc-self", 0, -0.1, 0.5), head("cross", 0, -2.0, 0.001, 0.002)]
    write_table(folder, "ablation/one.csv", rows)
    write_table(folder, "curves/gradient.csv", curve(30.0, 29.0, 20.0))
    chosen = {"heads_closed": 2, "closed_share": 0.2, "test_bleu": 29.0, "test_bleu_difference": -1.0}
    settings = {"order": "gradient", "kinds": ["enc-self", "dec-self", "cross"]}
    chosen |= {"test_bleu_difference_low": -2.0, "test_bleu_difference_high": 0.1}
    folder.write_json("curves/gradient.json", {"finished": True, "chosen": chosen, "settings": settings})
    folder.write_json("curves/gradient-order.json", {})
    base: dict = {
        "system": "base",
        "bleu": 31.25,
        "parameters": 12345,
        "heads_total": 10,
        "evaluation": {"search": {"beam": 5}},
    }
    base["stage"] = {"converged": False, "losses": [2.5, 1.25, 1.5], "epochs": 3, "seconds": 120.0}
    folder.write_json("result.json", {"rows": [base], "seed": 7, "commit": "abc"})
    monkeypatch.setattr(sys, "argv", ["michel", str(folder.path), "--out", str(tmp_path / "results")])
    assert michel.main() == 0
    page = (tmp_path / "results/michel.md").read_text()
    assert all(f"| {claim.number} |" in page for claim in CLAIMS)
    assert "| 20% | 29.00 (-1.00) |" in page
    assert "| `toy-none` | 31.25 (beam 5) | 12,345 | 10 | 1.250 | not converged | 3 | 2 | 7 | abc |" in page
    assert sorted(path.name for path in (tmp_path / "results/michel/toy-none").rglob("*.*")) == [
        *("gradient.csv", "gradient.json", "one.csv", "result.json")
    ]


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_folder_without_results_is_one_error(tmp_path, monkeypatch, capsys, name):
    RunFolder(tmp_path / "empty").write_text("config.yaml", "data: toy\n")
    monkeypatch.setattr(sys, "argv", ["michel", str(tmp_path / name), "--out", str(tmp_path / "results")])
    assert michel.main() == 1
    assert "michel: error:" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
