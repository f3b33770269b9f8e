"""Tables as wide as the terminal, and what is said of rows in sentences."""

import re
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

from headgates.configs.recipe import Recipe, Units
from headgates.configs.settings import Settings
from headgates.records.folder import RunFolder
from headgates.records.row import BASE, CONTINUED, PRUNED, Measure, ResultRow
from headgates.report import table as tables
from headgates.report.table import next_commands, parts, result_sentence, show, size_sentences, warnings_of

IMPORTANCE = Recipe("importance", Units(31))
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


@pytest.mark.parametrize("width", [50, 80, 140])
def test_no_number_is_cut_and_no_line_is_wider_than_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setattr(
        tables, "Console", lambda **_: Console(width=width, force_terminal=True, color_system=None)
    )
    numbers = ["31/72", "11", "36.50", "35.5", "-1.38", "1,013,013", "0.013", "2.5", "117,776"]
    show("title", ["method", *(f"column {i}" for i in range(9))], [["importance, out refitted", *numbers]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    said = " ".join(line.removeprefix("importance, out refitted") for line in lines if line[:1] == "i")
    assert re.findall(r"[-+]?\d[\d./,]*", said) == numbers
    assert "…" not in "".join(lines)


def test_a_wide_table_breaks_into_parts_that_each_repeat_the_words():
    columns = [["name", "n" * 10], ["a", "1" * 8], ["b", "2" * 8], ["c", "3" * 30], ["d", "4"]]
    assert parts(columns, 1, 34) == [[0, 1, 2], [0, 3], [0, 4]]
    assert parts(columns, 1, 200) == [[0, 1, 2, 3, 4]]
    assert parts(columns[:1], 1, 5) == [[0]]


@pytest.mark.parametrize(
    ("rows", "warm_up", "said"),
    [
        ([row(PRUNED, 37.0, stage=DONE), row(BASE, 37.0)], 499, []),
        ([row(PRUNED, 37.0, stage=DONE), row(BASE, 37.0)], 500, ["finetune.warmup_steps 500"]),
        ([row(BASE, 37.0, stage=DONE)], 500, []),
        ([row(BASE, 37.0, stage=LONG)], 50, ["fell by 33.3% over the last 4 epochs"]),
        ([row(BASE, 37.0, stage={**LONG, "losses": [3.0], "converged": None})], 50, ["too few epochs (1)"]),
        ([row(CONTINUED, 37.0, stage={**DONE, "losses": [3.0, 2.5]})], 50, ["too few epochs (2)"]),
    ],
)
def test_what_the_numbers_cannot_say_is_said_with_the_number_that_was_measured(rows, warm_up, said):
    settings = Settings()
    settings = replace(settings, finetune=replace(settings.finetune, warmup_steps=warm_up))
    lines = warnings_of(rows, settings)
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_a_ratio_of_sizes_and_speeds_needs_both_to_be_measured():
    base = row(BASE, 37.0, parameters=2000, seconds=3.0)
    smaller = row(PRUNED, 37.0, parameters=1500, recipe=IMPORTANCE)
    base.heads_open = 72
    assert size_sentences([base, smaller]) == []
    smaller.seconds = 0.002
    (said,) = size_sentences([base, smaller])
    assert said == "importance: 75% of the parameters"
    smaller.seconds = 2.0
    (said,) = size_sentences([base, smaller])
    assert "75% of the parameters, 1.50 times as fast as unpruned (measured once each" in said


def written(folder: RunFolder, rows: list[ResultRow], system: str, **config) -> RunFolder:
    folder.write_text("config.yaml", yaml.safe_dump(config or {"src": "en"}))
    result = {"rows": [each.to_json() for each in rows], "reference": BASE, "system": system}
    folder.write_json("result.json", result)
    return folder


def test_nothing_is_said_of_differences_from_a_model_that_learned_nothing(tmp_path):
    base = row(BASE, 0.49, above_trivial=(-0.5, 0.2))
    run = written(RunFolder(tmp_path), [base, row(PRUNED, 0.5, 0.01, recipe=IMPORTANCE)], PRUNED)
    said = result_sentence(run)
    assert "base has not learned its task: its 0.49 is not above outputs that ignore the source" in said
    assert "+0.01" not in said
    assert not any("translate" in line.split()[1] for line in next_commands(run))


def test_no_command_is_named_that_ctranslate2_would_refuse(tmp_path):
    run = written(RunFolder(tmp_path), [row(BASE, 37.0)], BASE, model={"decoder_mixer": "ssru"})
    assert [line.split()[1] for line in next_commands(run)] == ["translate", "analyze", "explore"]
