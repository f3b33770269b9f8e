"""The fuzz run knows what became of a case: each outcome is planted once, and hostile files are what they
claim to be."""

import os
import pickle
import random
import subprocess
import sys
import time

import pytest

from benchmarks.fuzz_child import OUTCOMES, tried
from benchmarks.fuzz_damage import damage, hostile_pickle
from benchmarks.fuzz_foreign import kinds_of

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the watch needs Linux's pidfd_open")


@pytest.fixture
def inside(tmp_path):
    for name in ("case/inside", "case/outside"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "case/inside"


def fails(error):
    def action():
        raise error

    return action


def says(text, code):
    def action():
        print(text, file=sys.stderr)
        return code

    return action


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (lambda: None, "fine"),
        (lambda: open("x", "w").close(), "fine"),
        (fails(ValueError("expected a, got b")), "one clear error"),
        (fails(OSError("cannot write")), "one clear error"),
        (says("fit.py: error: expected a, got b", 1), "one clear error"),
        (fails(ValueError("two\nlines")), "traceback"),
        (lambda: "\ud800".encode(), "traceback"),
        (fails(KeyError("x")), "traceback"),
        (says("a\nb", 1), "traceback"),
        (lambda: time.sleep(9), "hang"),
        (os.abort, "crash"),
        (lambda: open("../../outside/x", "w").close(), "wrote outside"),
        (lambda: os.mkdir("../../beside"), "wrote outside"),
        (lambda: os.system("true"), "executed code"),
        (lambda: subprocess.run(["true"], check=True), "executed code"),
        (lambda: open("../../outside/marker", "w").close(), "executed code"),
    ],
)
def test_every_outcome_is_told(inside, action, outcome):
    found, words = tried(action, inside, seconds=0.2)
    assert found == outcome, words
    assert outcome in OUTCOMES


def test_a_hostile_pickle_runs_where_it_is_unpickled(inside):
    marker = inside.parent / "outside/marker"
    content = next(
        found
        for seed in range(99)
        if (found := hostile_pickle(random.Random(seed), marker))[:2] in (b"\x80\x04", b"\x80\x05")
    )
    outcome, _ = tried(lambda: pickle.loads(content) and None, inside, seconds=5)
    assert outcome == "executed code"


def test_the_same_generator_does_the_same_damage(tmp_path):
    contents = []
    for _ in range(2):
        (tmp_path / "x.csv").write_text("a,b\n1,2\n" * 20)
        rng = random.Random("5 3")
        contents.append(
            ([damage(rng, tmp_path / "x.csv", tmp_path) for _ in range(1)], (tmp_path / "x.csv").exists())
        )
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", ["settings", "trees and labels", "corpus"])
def test_cases_of_a_kind_end_without_a_defect(inside, name):
    kind = kinds_of(inside.parent / "whole")[name]
    (inside / "work").mkdir()
    action, done = kind.make(random.Random(3), inside)
    outcome, words = tried(action, inside, seconds=kind.seconds)
    assert outcome in ("fine", "one clear error"), (done, words)
