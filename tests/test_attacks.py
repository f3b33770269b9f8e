"""What somebody else's file may do to its reader: one clear error, or it is left out. Nothing runs, nothing
outside is read or written, and nothing hangs."""

import sys
from pathlib import Path

import pytest

from tests.worlds.attacks import ATTACKS, WHOLE, tried

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="each case is a fork with limits of its own")


@pytest.fixture(scope="session", autouse=True)
def imported_once() -> None:
    """Before the forks: what takes seconds to import."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra hf")
    for name in ("BartForConditionalGeneration", "BertForSequenceClassification"):
        getattr(transformers, name)


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    """What somebody else sent, and what is the user's."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "key").write_text("the user's own\n")
    return inside, outside


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_whole_is_read(folders, name):
    inside, outside = folders
    outcome, words = tried(WHOLE[name](inside, outside), inside, outside)
    assert outcome == "fine", words


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_clear_error(folders, name):
    inside, outside = folders
    attack, expected = ATTACKS[name]
    outcome, words = tried(attack(inside, outside), inside, outside)
    assert outcome == ("one clear error" if expected and expected != "left out" else "fine"), words
    assert expected in words
