"""The table of a run's systems, as wide as its terminal, and what is said below it."""

import re

import pytest
import yaml
from rich.console import Console

from headgates.records.folder import RunFolder
from headgates.records.row import Measure, ResultRow
from headgates.report import table as tables
from headgates.report.table import comparison_table, next_commands, parts, size_sentences, warnings_of

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
ROWS = [row("base", 37.88), row("importance:trained", 36.5, -1.38, parameters=1013, seconds=2.5)]


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
    of_trained = " ".join(line for line in lines if line.startswith("importance"))
    assert re.findall(r"[-+]?\d[\d./,]*", of_trained) == [
        *("31/72", "3", "11", "17", "36.50", "35.5", "37.5", "56.50"),
        *("-1.38", "-1.75", "-0.25", "0.013", "1,013", "2.5"),
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
    lines = warnings_of(rows, config)
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_a_ratio_of_sizes_and_speeds_needs_both_to_be_measured():
    base, smaller = row("base", 37.0, parameters=2000, seconds=3.0), row("l0-removed", 37.0, parameters=1500)
    base.heads_open = 72
    assert size_sentences([base, smaller]) == []
    smaller.seconds = 0.002
    (said,) = size_sentences([base, smaller])
    assert said.endswith(", closed heads removed: 75% of the parameters")
    smaller.seconds = 2.0
    (said,) = size_sentences([base, smaller])
    assert "75% of the parameters, 1.50 times as fast as unpruned (measured once each" in said


def test_nothing_is_said_of_differences_from_a_model_that_learned_nothing(run, capsys):
    rows = [row("base", 0.49, above_trivial=(-0.5, 0.2)), row("l0", 0.5, 0.01)]
    run.write_json(
        "result.json", {"rows": [each.to_json() for each in rows], "reference": "base", "system": "l0"}
    )
    comparison_table(run)
    said = capsys.readouterr().out
    assert "base has not learned its task: its 0.49 is not above outputs that ignore the source" in said
    assert "+0.01" not in said
    assert not any("translate.py" in line for line in next_commands(run))


def test_no_command_is_named_that_ctranslate2_would_refuse(run):
    run.write_text("config.yaml", yaml.safe_dump({"model": {"decoder_mixer": "ssru"}}))
    assert [line.split()[1] for line in next_commands(run)] == ["translate.py", "analyze.py", "explore.py"]
