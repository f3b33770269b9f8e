"""The test lines on the page: whose outputs they are, and how many of them there are."""

from pathlib import Path

import pytest

from headgates.configs.analyses import Analyses
from headgates.configs.recipe import Recipe, Units
from headgates.explain.analysed_model import AnalysedModel
from headgates.records.folder import RunFolder
from headgates.report import output_lines as module
from headgates.report.output_lines import output_lines
from tests.report.made_runs import made_run, toy_base

SCORED = Recipe("importance", Units(42))


@pytest.fixture
def base(tmp_path) -> RunFolder:
    base = toy_base(tmp_path)
    made_run(base, SCORED, 1, 90.0, continued=94.0, outputs=[f"{i} of 400" for i in range(400)])
    return base


def lines_of(base: RunFolder, **settings):
    config = Analyses(siblings=True, threads=1, **settings)
    return output_lines(AnalysedModel.open([str(base.path)], config, lambda text: None))


def test_each_line_has_what_each_system_wrote_of_that_source(base):
    scored = RunFolder(base.path.parent / "toy-importance-42-s1")
    scored.write_outputs("base-continued", ["the same"] * 400)
    found = lines_of(base)
    systems = [(system["run"], system["label"], system["own"]) for system in found["systems"]]
    assert systems == [
        (base.path.name, "unpruned", True),
        (scored.path.name, "unpruned, trained as long", False),
        (scored.path.name, "importance, 42 heads, seed 1", True),
    ]
    written = [base.outputs("base"), ["the same"] * 400, scored.outputs("pruned")]
    sources = AnalysedModel.open([str(base.path)], Analyses(), print).source.lines("test")
    assert len(found["lines"]) > 99
    for line in found["lines"]:
        assert (line["source"], line["reference"]) == tuple(text[line["number"]] for text in sources)
        own = [line["outputs"][place] for place in line["of"]]
        assert own == [each[line["number"]] for each in written]
        assert len(set(line["outputs"])) == len(line["outputs"])


def test_the_sample_is_bounded_and_says_of_how_many_lines(base, monkeypatch):
    whole = lines_of(base)
    numbers = [line["number"] for line in whole["lines"]]
    assert (len(numbers), whole["total"]) == (module.MOST_LINES, 400)
    assert numbers == sorted(set(numbers))
    assert max(numbers) > 350  # of all the text, not its beginning
    monkeypatch.setattr(module, "MOST_BYTES", 5_000)
    few = lines_of(base)["lines"]
    assert 5 < len(few) < 60
    assert {line["number"] for line in few} < set(numbers)


@pytest.mark.parametrize("content", [None, b"one line\n", b"\xff\n" * 400])
def test_outputs_of_another_text_or_gone_or_no_text_are_left_out(base, content, capsys):
    path = Path(base.path.parent / "toy-importance-42-s1/hypotheses/pruned.txt")
    path.write_bytes(content) if content else path.unlink()
    assert [system["system"] for system in lines_of(base)["systems"]] == ["base"]
    assert ("pruned.txt is not UTF-8" in capsys.readouterr().out) == (content == b"\xff\n" * 400)


def test_a_page_about_a_text_of_its_own_has_no_test_lines(base, tmp_path):
    (tmp_path / "lines.en").write_text("the dog sees a cat.\n")
    assert lines_of(base, text=str(tmp_path / "lines.en")) is None
