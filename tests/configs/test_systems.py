"""The grammar of systems: what a name says, in which order they stand, and which names are refused."""

import pytest

from headgates.configs.closing import LASTING, ZERO
from headgates.configs.scores import SCORES
from headgates.configs.systems import ScoreRow, check_systems, label, place, record, score_rows


def test_every_row_is_read_back_from_its_name():
    rows = [ScoreRow(s, c, t) for s in SCORES for c in LASTING for t in (False, True)]
    assert [ScoreRow.parse(row.name) for row in rows] == rows
    assert len({row.name for row in rows}) == len(rows)
    assert ScoreRow("importance", "out+ffn+v", trained=True).name == "importance:out+ffn+v:trained"


@pytest.mark.parametrize(
    "name", ["l0", "importanc", "obs:zero", "obs:trained:out", "obs:resample", "obs:out:out", "obs:", ""]
)
def test_what_is_no_row_is_none(name):
    assert ScoreRow.parse(name) is None


def test_rows_stand_closing_by_closing_the_plain_one_first():
    names = ["obs:out:trained", "l0", "obs", "importance:trained", "obs:trained", "obs:out"]
    found = {score: [row.name for row in rows] for score, rows in score_rows(names).items()}
    assert found == {
        "importance": ["importance:trained"],
        "obs": ["obs", "obs:trained", "obs:out", "obs:out:trained"],
    }
    assert sorted([*names, "unknown", "base"], key=place)[:2] == ["base", "l0"]
    assert sorted([*names, "unknown"], key=place)[-1] == "unknown"


def test_a_record_says_what_was_closed_and_trained():
    assert record("obs:out:trained", 3) == {
        "method": "obs", "ablation": ZERO, "reconstruct": "out", "epochs": 3
    }  # fmt: skip
    assert record("obs:mean") == {"method": "obs", "ablation": "mean", "reconstruct": None, "epochs": 0}
    assert record("l0-soft", 2)["method"] == "l0-soft"
    assert label("importance:out:trained") == "importance, out refitted, trained as long"


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["base", "importanc"], r"got importanc \(did you mean 'importance'\?\)"),
        (["obs:outt"], r"did you mean 'obs:out'"),
        (["obs", "obs"], "each once; got obs, obs"),
        ([], "each once; got none"),
    ],
)
def test_an_unknown_or_repeated_system_is_refused(names, error):
    with pytest.raises(ValueError, match=f"--systems: expected .*{error}"):
        check_systems("--systems", names, ["base"], "[:trained]")


def test_training_is_no_method():
    with pytest.raises(ValueError, match="got obs:trained"):
        check_systems("--methods", ["obs:trained"], ["l0"])
