"""What is done for a run that is finished already: its page, and a base's translations of other
test lines."""

from headgates.pruning.protocol import make_runs

RUN, BASE = "{}-xx-yy-l0-0.1-s1", "{}-xx-yy-none-s1"


def name(pattern: str, text_folder) -> str:
    return pattern.format(text_folder.name)


def test_a_run_that_is_there_is_handed_on_as_not_made_now(runs, configure, stages, text_folder):
    """From this the command knows to write its page if that is missing."""
    seen = []
    make_runs(configure(), finished=lambda run: seen.append((run.folder.path.name, run.made)))
    assert seen == [(name(BASE, text_folder), False), (name(RUN, text_folder), False)]
    assert stages == []


def test_a_finished_base_is_translated_again_for_other_test_lines_or_another_search(
    runs, configure, stages, text_folder, corpus
):
    def row(*flags):
        run = make_runs(configure("--gate", "none", "--systems", "base", *flags))
        assert run.path.name == name(BASE, text_folder)
        (only,) = run.read_json("result.json")["rows"]
        assert len((run / "hypotheses/base.txt").read_text().splitlines()) == only["evaluation"]["sentences"]
        return only

    whole, few, greedy = row(), row("--test-sentences", "3"), row("--search.beam", "1")
    assert stages == []
    assert (whole["evaluation"]["sentences"], few["evaluation"]["sentences"]) == (len(corpus.test.sources), 3)
    assert greedy["evaluation"]["search"]["beam"] == 1
    assert whole["stage"] == few["stage"] == greedy["stage"]
