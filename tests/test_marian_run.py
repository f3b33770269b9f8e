"""A model of Marian's with an SSRU decoder is a run like any other: curves, ablations by drafts,
relevance."""

import pytest

from headgates.commands import analyze, prune
from tests.bridges.test_marian import keys
from tests.worlds.marian_models import SSRU, write_marian
from tests.worlds.runs import well

LINES = ["the dog sleeps", "a cat sees the dog", "cat", "no cat sleeps", "a dog", "the cat sees no dog"]


@pytest.fixture
def words(tmp_path) -> list[object]:
    """SOURCE and the flags of its text and runs."""
    text = tmp_path / "text"
    text.mkdir()
    for part in ("train", "valid", "test"):
        for side in ("en", "de"):
            (text / f"{part}.{side}").write_text(
                "\n".join(f"{line} {(part == 'test' and 'a') or ''}".strip() for line in LINES) + "\n"
            )
    path = write_marian(tmp_path / "student", **keys(SSRU))
    return [f"marian:{path}", "--data", text, "--src", "en", "--tgt", "de", "--runs", tmp_path / "runs"]


def test_its_heads_are_scored_and_closed(called, words, tmp_path):
    well(called(prune)(*words, "--by", "importance", "--heads", "5"))
    well(called(analyze)(*words, "--ablate", "one"))
    (run,) = (tmp_path / "runs").glob("marian-*")
    (table,) = run.rglob("*one*.csv")
    kinds = [
        line.split(",")[0].rsplit(".", 1)[-1] for line in table.read_text(encoding="utf-8").splitlines()[1:]
    ]
    assert (kinds.count("enc-self"), kinds.count("cross"), kinds.count("dec-self")) == (6, 6, 0)


def test_relevance_reaches_its_heads(called, words):
    out = well(called(analyze)(*words, "--what", "lrp,confidence"))
    assert "LRP share" in out
    assert "dec-self" not in out
