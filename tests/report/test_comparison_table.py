"""The table of a run's systems, as wide as its terminal, and what is said below it."""

import re

import pytest
import yaml
from rich.console import Console

from headgates.report import comparison_table as tables
from headgates.report.comparison_table import comparison_table, warnings_of
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


ROWS = [row("base", 37.88), row("greedy-finetuned", 36.5, -1.38)]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.write_text(
        "config.yaml", yaml.safe_dump({"train": {"warmup_steps": 100}, "finetune": {"warmup_steps": 50}})
    )
    folder.write_json("result.json", {"rows": [each.to_json() for each in ROWS], "reference": "base"})
    return folder


@pytest.mark.parametrize("width", [80, 140])
def test_every_number_is_whole_at_80_columns_and_at_140(run, width, monkeypatch, capsys):
    def console(**_):
        return Console(width=width, force_terminal=True, color_system=None)

    monkeypatch.setattr(tables, "Console", console)
    monkeypatch.setattr("headgates.report.terminal.Console", console)
    comparison_table(run)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    (line,) = [line for line in lines if "greedy-finetuned" in line]
    numbers = re.findall(r"[-+]?\d[\d./+]*", line)
    kinds = ["3", "11", "17"] if width == 140 else ["3+11+17"]
    bleu = ["36.50", "35.5", "37.5"] if width == 140 else ["36.50"]
    ends = ["-1.75", "-0.25"] if width == 140 else ["-1.8", "-0.2"]  # rounded to even
    assert numbers == ["31/72", *kinds, *bleu, "56.50", "-1.38", *ends, "0.013"]
    assert "…" not in "".join(lines)


def test_a_reference_that_learned_nothing_is_said():
    lines = warnings_of([row("base", 0.3)], {}, "base")
    assert lines == [
        "base scores 0.30: it has not learned the task, so the differences say nothing; train it for longer"
    ]
    assert warnings_of(ROWS, {}, "base") == []


@pytest.mark.parametrize(("warm_up", "is_said"), [(499, False), (500, True), (800, True)])
def test_a_warm_up_as_long_as_its_stage_is_said(warm_up, is_said):
    config = {"train": {"warmup_steps": 1}, "finetune": {"warmup_steps": warm_up}}
    lines = warnings_of(
        [row("l0", 37.0, stage={**LONG, "converged": None}), row("base", 37.0)], config, "base"
    )
    flag = f"(--finetune.warmup-steps {warm_up}, and 500 steps)"
    assert (
        lines
        == [f"l0: the learning rate never reached its peak {flag}; lower it or train for longer"] * is_said
    )


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({**LONG, "converged": True}, []),
        (
            LONG,
            [
                "base is not converged: its validation loss still fell by 0.5% over the last 4 epochs; train it for longer"
            ],
        ),
        (
            {**LONG, "losses": [3.0, 2.5], "converged": None},
            ["base: 2 epochs are too few to say whether it is converged"],
        ),
        (
            {**LONG, "losses": [3.0], "converged": None},
            ["base: 1 epoch is too few to say whether it is converged"],
        ),
        (
            {**LONG, "losses": [3.0, 2.5]},
            ["base: 2 epochs are too few to say whether it is converged"],
        ),  # of an older run
    ],
)
def test_whether_a_base_is_converged_is_said_where_its_epochs_tell(stage, said):
    assert warnings_of([row("base", 37.0, stage=stage)], {}, "base") == said
