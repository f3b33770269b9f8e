"""What is done for a run that is finished already: its page, and a base's translations of other
test lines."""

from headgates.workbench.experiment import Experiment

RUN, BASE = "{}-xx-yy-l0-0.1-s1", "{}-xx-yy-none-s1"


def name(pattern: str, text_folder) -> str:
    return pattern.format(text_folder.name)


def test_a_finished_run_that_lost_its_page_gets_it_again(runs, configure, stages, text_folder):
    pages = [runs / name(pattern, text_folder) / "report.html" for pattern in (RUN, BASE)]
    for page in pages:
        page.unlink()
    Experiment(configure()).run()
    assert all(page.is_file() for page in pages)
    assert stages == []


def test_a_finished_base_is_translated_again_for_other_test_lines_or_another_search(
    runs, configure, stages, text_folder, corpus
):
    def row(*flags):
        run = Experiment(configure("--gate", "none", "--systems", "base", *flags)).run()
        assert run.path.name == name(BASE, text_folder)
        (only,) = run.read_json("result.json")["rows"]
        assert len((run / "hypotheses/base.txt").read_text().splitlines()) == only["evaluation"]["sentences"]
        return only

    whole, few, greedy = row(), row("--test-sentences", "3"), row("--search.beam", "1")
    assert stages == []
    assert (whole["evaluation"]["sentences"], few["evaluation"]["sentences"]) == (len(corpus.test.sources), 3)
    assert greedy["evaluation"]["search"]["beam"] == 1
    assert whole["stage"] == few["stage"] == greedy["stage"]
