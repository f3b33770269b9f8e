"""Progress on standard error, as a terminal and as a log file see it."""

import io
import sys
from types import SimpleNamespace

import pytest

from headgates.models.progress import Progress, reported


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_counter_in_place_on_a_terminal_and_lines_elsewhere(monkeypatch, terminal):
    error = io.StringIO()
    error.isatty = lambda: terminal
    clock = iter([0.0, 1.0, 12.0, 12.0, 12.0, 20.0])
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr("headgates.models.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    with Progress(quiet=False, lines_seen=False) as progress:
        progress.every = 5.0
        progress.add(100)
        progress.add(1100)
        progress.say("a word")
        progress.finish()
    counter = "1,200 lines, 100.0 lines/s"
    assert error.getvalue() == ("\r" if terminal else "") + f"{counter}\na word\n1,200 lines, 60.0 lines/s\n"


def test_a_long_pass_says_how_far_it_is_every_ten_seconds(monkeypatch):
    clock = iter([0.0, 4.0, 12.0, 15.0, 40.0])  # at the beginning, and after each batch
    monkeypatch.setattr("headgates.models.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    lines = []
    batches = ["aa", "bbbb", "cc", "dd"]
    assert list(reported(batches, 10, len, what="lrp", report=lines.append)) == batches
    assert lines == ["lrp: 6 of 10, at most about 8 s left"]  # not at the end, where the result follows


def test_quiet_progress_says_nothing(capsys):
    with Progress(quiet=True, lines_seen=False) as progress:
        progress.every = 0.0
        progress.add(100)
        progress.finish()
    assert capsys.readouterr() == ("", "")
