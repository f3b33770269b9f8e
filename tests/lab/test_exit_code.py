"""How scripts end: their code, and one line on stderr."""

import errno
import os
import signal
import time
import warnings
from collections.abc import Iterator

import pytest

from headgates.lab.exit_code import exit_code


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize("returned", [None, 0, 3])
def test_what_a_script_returns_is_its_code(returned, capsys):
    assert exit_code("x.py", lambda: returned, interrupted="") == (returned or 0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [ValueError("no run at x"), FileNotFoundError("no run at x")])
def test_a_mistake_is_one_line(error, capsys):
    assert exit_code("x.py", lambda: fail(error), interrupted="") == 1
    assert capsys.readouterr().err == "x.py: error: no run at x\n"


def test_a_warning_is_one_line_that_names_no_line_of_code():
    shown = []

    def warn() -> None:
        shown.append(warnings.formatwarning(UserWarning("left out: x\nis broken"), UserWarning, "a.py", 7))

    exit_code("x.py", warn, interrupted="")
    assert shown == ["warning: left out: x is broken\n"]


@pytest.mark.parametrize(
    ("filename", "said"),
    [("runs/a/events.1", "cannot write runs/a/events.1: "), (None, "cannot write all of its output: ")],
)
def test_a_full_disk_is_one_line_with_what_to_do(filename, said, capsys):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), filename)
    assert exit_code("x.py", lambda: fail(error), interrupted="") == 1
    assert (
        capsys.readouterr().err
        == f"x.py: error: {said}No space left on device; free some space and repeat the command\n"
    )


def test_names_cannot_command_the_terminal(capsys):
    assert (
        exit_code(
            "x.py",
            lambda: fail(ValueError("no run at \x1b[31mruns/\udcff\u202egnp\tä\u00a0日")),
            interrupted="",
        )
        == 1
    )
    assert capsys.readouterr().err == "x.py: error: no run at \\x1b[31mruns/\\udcff\\u202egnp\tä\u00a0日\n"


@pytest.fixture
def heard() -> Iterator[None]:
    """Signals are handled as in a terminal: tests in the background, or under nohup, inherit ignored ones."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    usual[signal.SIGUSR1] = signal.SIG_DFL
    before = {signum: signal.signal(signum, handler) for signum, handler in usual.items()}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_an_interrupt_a_kill_and_a_closed_terminal_say_how_to_go_on(signum, capsys, heard):
    assert (
        exit_code("x.py", lambda: os.kill(os.getpid(), signum), interrupted="--resume continues")
        == 128 + signum
    )
    assert capsys.readouterr().err == "x.py: interrupted; --resume continues\n"
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == [
        signal.SIG_DFL,
        signal.SIG_DFL,
    ]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_destructor_swallows_ends_the_command_all_the_same(signum, capsys, heard):
    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signum)

    def run() -> None:
        Dropped()
        for _ in range(300):
            time.sleep(0.1)

    assert exit_code("x.py", run, interrupted="--resume continues") == 128 + signum
    assert capsys.readouterr().err == "x.py: interrupted; --resume continues\n"


def test_a_kill_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert exit_code("x.py", lambda: os.kill(os.getpid(), signal.SIGHUP), interrupted="") == 0
    finally:
        signal.signal(signal.SIGHUP, before)
