"""The heads that a curve closes first are those that are removed; how long it took is no test."""

import json

import pytest

from benchmarks import curve_speed
from headgates.commands import prune
from tests.bridges.test_marian import keys
from tests.worlds.marian_models import HEADS, SSRU, D, write_marian

LINES = ["the dog sleeps", "a cat sees the dog", "cat", "no cat sleeps", "a dog", "the cat sees no dog"]
CURVE = "gradient-step0.5-enc-self"


@pytest.fixture
def run(called, tmp_path):
    """A run folder of a Marian student whose encoder heads a curve has closed."""
    for part in ("train", "valid", "test"):
        for side in ("en", "de"):
            (tmp_path / f"{part}.{side}").write_text("\n".join(LINES) + "\n")
    source = f"marian:{write_marian(tmp_path / 'student', **keys(SSRU))}"
    flags = [
        "--data",
        tmp_path,
        "--src",
        "en",
        "--tgt",
        "de",
        "--kinds",
        "enc-self",
        "--step",
        "0.5",
        "--runs",
        tmp_path / "runs",
    ]
    code, _, error = called(prune)(source, *flags)
    assert code == 0, error
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def test_the_heads_that_the_curve_closed_are_gone(run, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    words = [
        "--run",
        run,
        "--curve",
        CURVE,
        "--sentences",
        4,
        "--batch",
        3,
        "--rounds",
        2,
        "--out",
        out,
        "--threads",
        1,
    ]
    monkeypatch.setattr("sys.argv", ["curve_speed.py", *map(str, words)])
    assert curve_speed.main() == 0
    record = json.loads(out.read_text())
    (half,) = record["measured"]
    assert (half["heads_closed"], half["closed_share"]) == (HEADS, 0.5)
    width = D // HEADS
    assert record["whole"]["parameters"] - half["parameters"] == HEADS * (4 * D * width + 3 * width)
    assert 0 < half["saved_share"] < 0.5
    assert len(half["whole_over_removed"]["values"]) == 2


def test_a_curve_that_is_not_there_is_one_error(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["curve_speed.py", "--run", str(run), "--curve", "random"])
    assert curve_speed.main() == 1
    assert (
        f"has no order of a curve 'random'; its curves: {CURVE}; python prune.py draws one"
        in capsys.readouterr().err
    )
