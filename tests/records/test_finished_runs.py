"""What is done for a run that is finished already: nothing, and a base's translations of other test lines."""

import pytest

from headgates.lab.evaluation import Evaluation
from headgates.lab.tracker import Tracker
from headgates.pruning.base import base_run
from headgates.pruning.make import make, row_of
from headgates.records.folder import RunFolder, find_runs
from headgates.records.row import BASE, CONTINUED
from headgates.tasks.translation import Translation
from tests.worlds.finished_runs import LEARNED


def test_a_finished_run_is_found_and_nothing_is_made_again(finished, runs, base, lab_of, stages, monkeypatch):
    opened = []
    monkeypatch.setattr(Tracker, "open", lambda _, folder, *rest, **how: opened.append(folder))
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    row = make(lab_of(asked=LEARNED), base_run(lab_of()), LEARNED)
    assert (row.run.path, row.result.system) == (runs / finished.path.name, "pruned")
    assert (stages, opened) == ([], [])
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_other_test_lines_or_another_search_are_another_result_and_replace_no_finished_file(
    base, lab_of, stages, corpus, monkeypatch
):
    before = {path: path.read_bytes() for path in base.path.rglob("*") if path.is_file()}

    def row(*flags):
        lab = lab_of(*flags)
        found = row_of(base_run(lab), lab)
        assert found.run.path == base.path
        assert len(found.scored) == found.result.evaluation["sentences"]
        return found.result

    whole, few, greedy = row(), row("--test-sentences", "3", "--name", "b"), row("--search.beam", "1")
    assert stages == []
    assert {path: path.read_bytes() for path in before} == before
    monkeypatch.setattr(Translation, "outputs", None)
    assert row("--test-sentences", "3") == few, "kept"
    assert (whole.evaluation["sentences"], few.evaluation["sentences"]) == (len(corpus.test.sources), 3)
    assert greedy.evaluation["search"]["beam"] == 1
    assert whole.stage == few.stage == greedy.stage


@pytest.fixture
def continued(runs) -> RunFolder:
    (found,) = (run for run in find_runs(runs) if run.own_system() == CONTINUED)
    return found


def test_a_continued_base_is_translated_once_for_other_test_lines_whoever_asks(
    continued, base, lab_of, monkeypatch
):
    lab = lab_of("--test-sentences", "3")
    row = row_of(continued, lab)
    monkeypatch.setattr(Translation, "outputs", None)
    evaluation = Evaluation(base, lab.task, lab.text.test, lab.task.prediction_settings(lab.text.load(base)))
    evaluation.borrow(BASE, continued, *lab.own_row(continued))
    assert row_of(continued, lab).result == row.result
    assert [(each.system, each.main.value) for each in evaluation.rows] == [("base", row.result.main.value)]


def test_a_base_that_may_not_be_written_to_is_translated_all_the_same(continued, lab_of):
    (continued / "evaluations").write_text("in the way, as a right that one does not have is")
    assert len(row_of(continued, lab_of("--test-sentences", "3")).scored) == 3
