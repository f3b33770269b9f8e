"""The table of a run's systems, as wide as its terminal, and what is said below it."""

import re

import pytest
import yaml
from rich.console import Console

from headgates.report import table as tables
from headgates.report.table import comparison_table, parts, warnings_of
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import Measure, ResultRow

LONG = {"losses": [3.0, 2.5, 2.2, 2.1, 2.0], "steps": 500, "converged": False}


def row(system: str, bleu: float, difference: float | None = None, **more) -> ResultRow:
    compared = (
        {}
        if difference is None
        else {"difference": difference, "difference_ci95": (-1.75, -0.25), "p_value": 0.013}
    )
    measures = {
        "bleu": Measure(bleu, "nrefs:1", (bleu - 1, bleu + 1), **compared, p_sacrebleu=0.007),
        "chrf": Measure(bleu + 20, "nc:6"),
    }
    return ResultRow(system, 31, 72, {"enc-self": 3, "dec-self": 11, "cross": 17}, measures, **more)


DONE = {**LONG, "converged": True}
BASE = row("base", 37.0)
ROWS = [row("base", 37.88), row("importance:trained", 36.5, -1.38)]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.write_text(
        "config.yaml", yaml.safe_dump({"train": {"warmup_steps": 100}, "finetune": {"warmup_steps": 50}})
    )
    folder.write_json("result.json", {"rows": [each.to_json() for each in ROWS], "reference": "base"})
    return folder


@pytest.mark.parametrize("width", [50, 80, 140])
def test_no_number_is_cut_and_no_line_is_wider_than_the_terminal(run, width, monkeypatch, capsys):
    monkeypatch.setattr(
        tables, "Console", lambda **_: Console(width=width, force_terminal=True, color_system=None)
    )
    comparison_table(run)
    sentence, *lines = capsys.readouterr().out.splitlines()
    assert "with 31 of 72 heads the model has 37.88 BLEU" in sentence
    assert max(map(len, lines)) <= width
    of_trained = " ".join(line for line in lines if "importance:trained" in line)
    assert re.findall(r"[-+]?\d[\d./]*", of_trained) == [
        *("31/72", "3", "11", "17", "36.50", "35.5", "37.5", "56.50"),
        *("-1.38", "-1.75", "-0.25", "0.013"),
    ]
    assert "…" not in "".join(lines)


def test_a_wide_table_breaks_into_parts_that_each_repeat_the_words():
    columns = [["name", "n" * 10], ["a", "1" * 8], ["b", "2" * 8], ["c", "3" * 30], ["d", "4"]]
    assert parts(columns, 1, 34) == [[0, 1, 2], [0, 3], [0, 4]]
    assert parts(columns, 1, 200) == [[0, 1, 2, 3, 4]]
    assert parts(columns[:1], 1, 5) == [[0]]


@pytest.mark.parametrize(
    ("rows", "config", "said"),
    [
        (ROWS, {}, []),
        ([row("base", 0.3)], {}, ["has not learned the task"]),
        ([row("l0", 37.0, stage=DONE), BASE], {"finetune": {"warmup_steps": 499}}, []),
        (
            [row("l0", 37.0, stage=DONE), BASE],
            {"finetune": {"warmup_steps": 500}},
            ["finetune.warmup_steps 500"],
        ),
        ([row("base", 37.0, stage=DONE)], {}, []),
        ([row("base", 37.0, stage=LONG)], {}, ["not converged"]),
        ([row("base", 37.0, stage={**LONG, "losses": [3.0], "converged": None})], {}, ["too few epochs (1)"]),
        ([row("base", 37.0, stage={**LONG, "losses": [3.0, 2.5]})], {}, ["too few epochs (2)"]),
    ],
)
def test_what_the_numbers_cannot_say_is_said(rows, config, said):
    lines = warnings_of(rows, config, "base")
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))
