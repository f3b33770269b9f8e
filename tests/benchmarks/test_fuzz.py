"""The fuzz run knows what became of a case: each outcome is planted once."""

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.fuzz import hostile_pickle, make_case, tried


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    (tmp_path / "case/inside/work").mkdir(parents=True)
    (tmp_path / "case/outside").mkdir()
    (tmp_path / "case/outside/kept").write_text("kept\n")
    return tmp_path / "case/inside"


def fails(error: Exception) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


def says(text: str) -> Callable[[], int]:
    def action() -> int:
        print(text, file=sys.stderr)
        return 1

    return action


def waits() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (lambda: open("x", "w").close(), "fine"),
        (fails(ValueError("expected a, got b")), "one clear error"),
        (says("fit.py: error: expected a, got b"), "one clear error"),
        (fails(ValueError("two\nlines")), "traceback"),
        (fails(KeyError("x")), "traceback"),
        (waits, "hang"),
        (os.abort, "crash"),
        (lambda: open("../../outside/x", "w").close(), "wrote outside"),
        (lambda: os.mkdir("../../beside"), "wrote outside"),
        (lambda: subprocess.run(["true"], check=True), "executed code"),
    ],
)
def test_every_outcome_is_told(inside: Path, action: Callable[[], int | None], outcome: str) -> None:
    assert tried(action, inside, seconds=1)[0] == outcome


def test_a_hostile_pickle_runs_where_it_is_unpickled(inside: Path) -> None:
    packed = [hostile_pickle(random.Random(seed), inside.parent / "outside/marker") for seed in range(9)]
    content = min(packed, key=len)  # a bare one, not as torch.save packs it
    assert tried(lambda: pickle.loads(content) and None, inside)[0] == "executed code"


@pytest.mark.parametrize("name", ["settings", "corpus", "checkpoint"])
def test_cases_of_a_kind_end_without_a_defect(inside: Path, name: str) -> None:
    action, done = make_case(name, random.Random(3), inside, inside.parent / "whole")
    outcome, words = tried(action, inside)
    assert outcome in ("fine", "one clear error"), (done, words)
