"""What is said at the terminal while a stage trains."""

import io
import re
import sys
from dataclasses import replace

import rich

from tests.lightning_modules.stages import STAGE, train


def test_a_stage_says_how_long_it_will_take_and_a_line_an_epoch(translator, data, corpus, tmp_path, capsys):
    sample = (corpus.valid.sources[:3], corpus.valid.targets[:3])
    train(
        translator,
        data,
        tmp_path,
        stage=replace(STAGE, epochs=4),
        name="base",
        of_module={"sample": sample},
    )
    lines = capsys.readouterr().out.splitlines()
    epochs = [line for line in lines if "base: epoch" in line]
    assert re.match(
        r"base: 4 epochs of \d+ steps, about \d+ s left, and the validations",
        lines[2],
    )
    assert [line.split(":")[1].strip() for line in epochs] == [f"epoch {i} of 4" for i in (1, 2, 3, 4)]
    assert all("loss" in line and "bleu" in line for line in epochs)


def test_the_bar_counts_epochs_from_one_and_is_not_cut_off(translator, data, tmp_path, monkeypatch):
    screen, width = io.StringIO(), 80
    console = rich.console.Console(file=screen, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(rich, "_console", console)
    train(translator, data, tmp_path, stage=replace(STAGE, epochs=2), name="training")
    lines = [line for line in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", screen.getvalue()) if "━" in line]
    said = {line.split(" ━")[0].removesuffix(", validation") for line in lines}
    assert said == {f"training, epoch {i} of 2" for i in (1, 2)}
    assert "100%" in lines[-1]
    assert max(map(len, lines)) <= width
