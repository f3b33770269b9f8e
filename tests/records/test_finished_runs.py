"""What is done for a run that is finished already: nothing, and a base's translations of other test lines."""

from headgates.lab.tracker import Tracker
from headgates.pruning.base import base_run
from headgates.pruning.make import make, row_of
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
