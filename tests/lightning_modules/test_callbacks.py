"""Convergence as the house defines it, and what is said at the terminal."""

import io
import re
import sys

import pytest
import rich

from headgates.configs.methods import METHODS
from headgates.configs.schema import GateConfig, StageConfig
from headgates.gates import LambdaBudget, attach
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, run_stage
from headgates.models.checkpoint import load_file
from headgates.models.progress import minutes
from headgates.tasks.translation import Translation
from headgates.workbench.convergence import is_converged


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([2.0] * 4, None),  # no four epochs to look back on yet
        ([2.0] * 5, True),
        ([2.0, 1.99, 1.99, 1.99, 1.989], False),  # 0.55% in four epochs
        ([2.0, 1.999, 1.998, 1.997, 1.991], True),  # 0.45%
        ([3.0, 2.0, 2.0, 2.0, 2.0, 1.9905], True),
        ([2.0, 1.9, 2.1, 2.2, 2.3, 2.4, 2.5], True),  # it rises: nothing was gained for four epochs
        ([2.0, 1.0, 2.0, 2.0, 2.0], False),  # the best came within the last four
        ([5.0, 4.0, 3.0, 2.0, 1.0], False),
    ],
)
def test_converged_is_a_fall_of_less_than_half_a_percent_in_four_epochs(losses, expected):
    assert is_converged(losses) is expected


def test_durations_are_in_seconds_or_minutes():
    assert (minutes(7.4), minutes(89), minutes(150)) == ("7 s", "89 s", "2.5 min")


def test_a_stage_says_how_long_it_will_take_and_a_line_an_epoch(translator, data, corpus, folder, capsys):
    stage = StageConfig(epochs=4, lr=0.003, warmup_steps=3)
    sample = (corpus.valid.sources[:3], corpus.valid.targets[:3])
    module, machine = (
        StageModule(Translation(), translator, stage, seed=1, sample=sample),
        Machine(1, "32", "csv"),
    )
    run_stage("base", module, data, folder, machine, stage, place="stage 1 of 4")
    lines = capsys.readouterr().out.splitlines()
    assert any(
        re.match(r"base: stage 1 of 4, 4 epochs of \d+ steps, about \d+ s left and the validations", line)
        for line in lines
    )
    epochs = [line for line in lines if "base: epoch" in line]
    assert [line.split(":")[1].strip() for line in epochs] == [f"epoch {i} of 4" for i in (1, 2, 3, 4)]
    assert all("loss" in line and "bleu" in line for line in epochs)


@pytest.mark.parametrize("width", [80, 140])
def test_the_bar_counts_epochs_and_stages_from_one_and_is_not_cut_off(
    translator, data, folder, monkeypatch, width
):
    screen = io.StringIO()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(
        rich,
        "_console",
        rich.console.Console(file=screen, width=width, force_terminal=True, color_system=None),
    )
    stage = StageConfig(epochs=2, lr=0.003, warmup_steps=3, bleu_sentences=0)
    name, place = "greedy-finetuned", "stage 4 of 4"
    module = StageModule(Translation(), translator, stage, seed=1)
    run_stage(name, module, data, folder, Machine(1, "32", "csv"), stage, place=place)
    lines = [line for line in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", screen.getvalue()) if "━" in line]
    assert {line.split(" ━")[0].removesuffix(", validation") for line in lines} == {
        f"{name}, {place}, epoch {i} of 2" for i in (1, 2)
    }
    assert "100%" in lines[-1]
    assert max(map(len, lines)) <= width


def test_epochs_under_the_noise_of_gates_say_nothing_about_convergence(translator, data, corpus, folder):
    gates = GateConfig(settle=0.4)
    attach(translator.model, gate="l0", **METHODS["l0"].gate_options(gates))
    stage = StageConfig(epochs=5, lr=0.003, warmup_steps=3, bleu_sentences=0)
    gating = Gating(gates, LambdaBudget(0.01, 2), epochs=stage.epochs)
    sample = (corpus.valid.sources[:3], corpus.valid.targets[:3])
    module = StageModule(Translation(), translator, stage, seed=1, sample=sample, gating=gating)
    result = run_stage("gates", module, data, folder, Machine(1, "32", "csv"), stage)
    (eligible,) = (
        state["eligible_losses"]
        for state in load_file(folder / "last.pt")["callbacks"].values()
        if "eligible_losses" in state
    )
    assert len(result.losses) == 5
    assert eligible == pytest.approx(result.losses[3:], abs=1e-4)
    assert result.converged is None
