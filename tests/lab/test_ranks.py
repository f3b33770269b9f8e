"""Scores, relevance, repair, outputs and ablations shared out among two processes are those of one; and one
decides, writes and speaks."""

import pytest
import torch

from tests.worlds.rank_jobs import decided, scored, timed
from tests.worlds.ranks import on_ranks


@pytest.fixture(scope="module")
def both(text_folder, vocab_folder):
    where = str(text_folder), str(vocab_folder)
    return scored(*where), on_ranks(scored, 2, *where)


@pytest.mark.parametrize("name", ["importance", "fisher", "relevance", "reconstruct", "fold_mean"])
def test_two_processes_find_what_one_does(both, name):
    one, two = both
    for each in two:
        torch.testing.assert_close(each[name], one[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["outputs", "ablated 1", "ablated 2"])
def test_lines_come_back_in_their_order(both, name):
    one, two = both
    assert [each[name] for each in two] == [one[name]] * 2


def test_all_go_on_with_what_the_first_has_timed(text_folder, vocab_folder):
    one, two = on_ranks(timed, 2, str(text_folder), str(vocab_folder))
    assert one == two  # else they would plan other models, and wait for each other in vain


def test_the_first_decides_writes_and_speaks(tmp_path):
    first, second = on_ranks(decided, 2, str(tmp_path))
    assert first["answer"] == second["answer"] == (1, True)  # alone while it decides
    assert first["error"] == second["error"] != ""
    assert first["who"] == second["who"] == "0"
    assert first["shared"] == second["shared"] == [10 * number for number in range(7)]
    assert first["few"] == second["few"] == [3]
    assert first["sum"] == second["sum"] == [2.0, 1.0]
    assert sorted([first["said"], second["said"]]) == [False, True]
