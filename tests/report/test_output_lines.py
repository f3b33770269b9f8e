"""The test lines on the page: whose outputs they are, and how many of them there are."""

import shutil
from pathlib import Path

import pytest

from headgates.configs.analyze import AnalyzeConfig
from headgates.explain.analysed_model import AnalysedModel
from headgates.report import output_lines as module
from headgates.report.output_lines import output_lines

TOY = Path(__file__).parents[2] / "examples/toy_run"
BASE, GATED = "toy-en-de-none-s1", "toy-en-de-l0-0.015-s1"


@pytest.fixture
def runs(tmp_path) -> Path:
    return Path(shutil.copytree(TOY, tmp_path / "runs"))


def lines_of(runs: Path, **settings):
    config = AnalyzeConfig(sources=[str(runs / BASE)], siblings=True, threads=1, **settings)
    return output_lines(AnalysedModel.open(config, lambda text: None))


def test_each_line_has_what_each_system_wrote_of_that_source(runs):
    found = lines_of(runs)
    files = {(BASE, "base"): "base"} | {
        (GATED, name): name.replace(":", "-")
        for name in ("base-continued", "l0", "importance", "importance:trained")
    }
    systems = [(system["run"], system["system"]) for system in found["systems"]]
    assert systems == list(files)
    assert [system["own"] for system in found["systems"]] == [True, False, True, False, False]
    written = {
        key: (runs / key[0] / f"hypotheses/{name}.txt").read_text().split("\n") for key, name in files.items()
    }
    sources = AnalysedModel.open(AnalyzeConfig(sources=[str(runs / BASE)]), print).source.lines("test")
    for line in found["lines"]:
        assert (line["source"], line["reference"]) == tuple(text[line["number"]] for text in sources)
        own = [line["outputs"][place] for place in line["of"]]
        assert own == [written[system][line["number"]] for system in systems]
        assert len(set(line["outputs"])) == len(line["outputs"])


def test_the_sample_is_bounded_and_says_of_how_many_lines(runs, monkeypatch):
    whole = lines_of(runs)
    numbers = [line["number"] for line in whole["lines"]]
    assert (len(numbers), whole["total"]) == (module.MOST_LINES, 400)
    assert numbers == sorted(set(numbers))
    assert max(numbers) > 350  # of all the text, not its beginning
    monkeypatch.setattr(module, "MOST_BYTES", 5_000)
    few = lines_of(runs)["lines"]
    assert 5 < len(few) < 40
    assert {line["number"] for line in few} < set(numbers)


def test_outputs_of_another_text_or_gone_or_no_text_are_left_out(runs, capsys):
    hypotheses = runs / GATED / "hypotheses"
    (hypotheses / "importance.txt").unlink()
    (hypotheses / "importance-trained.txt").write_text("one line\n")
    (hypotheses / "base-continued.txt").write_bytes(b"\xff\n" * 400)
    assert [system["system"] for system in lines_of(runs)["systems"]] == ["base", "l0"]
    assert "base-continued.txt is not UTF-8" in capsys.readouterr().out
    (runs / "lines.en").write_text("the dog sees a cat.\n")
    assert lines_of(runs, text=str(runs / "lines.en")) is None
