"""The user is told to type what the user types."""

import runpy
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from lightning_fabric.strategies.launchers.subprocess_script import _basic_subprocess_cmd

from headgates import __version__
from headgates.__main__ import main
from headgates.configs.program import command_line, program

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("headgates prune", "headgates fit"),
        ("prune.py", "python fit.py"),
        (str(ROOT / "prune.py"), "python fit.py"),
        ("/their/project/prune.py", "headgates fit"),
        (str(ROOT / "headgates/__main__.py"), "headgates fit"),
        ("", "headgates fit"),  # an interpreter without a program
    ],
)
def test_the_next_command_is_spelt_as_this_one_was(monkeypatch, started, expected):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [started])
    assert program("fit") == expected


def test_a_command_is_spelt_as_a_shell_takes_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", [""])
    line = command_line("translate", Path("my runs/base"), "--input", "FILE")
    assert shlex.split(line) == ["headgates", "translate", "my runs/base", "--input", "FILE"]
    assert line.count("'") == 2


@pytest.fixture
def typed(monkeypatch):
    """typed(words...): as if this process were the installed command."""

    def start(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["headgates", *words])
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)

    return start


def test_the_installed_command_never_speaks_of_a_script(typed, capsys):
    for words in (["fit", "--help"], ["prune", "--speedup", "none"], ["sweep", "nowhere"]):
        typed(*words)
        with pytest.raises(SystemExit) if words[0] != "sweep" else nullcontext():
            main()
        out, error = capsys.readouterr()
        assert f"headgates {words[0]}" in out + error
        assert "python " not in out + error


def test_the_other_processes_of_the_installed_command_are_the_same_command(typed):
    typed("fit", "--devices", "2", "--help")
    with pytest.raises(SystemExit):
        main()
    assert _basic_subprocess_cmd()[1:] == ["-m", "headgates.commands.fit", "--devices", "2", "--help"]


@pytest.mark.parametrize("command", ["fit", "prune", "analyze", "sweep"])
def test_a_command_that_starts_processes_runs_as_a_module_too(monkeypatch, capsys, command):
    name = f"headgates.commands.{command}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    assert end.value.code in (None, 0)
    assert capsys.readouterr().out.startswith("usage: ")


def test_the_installed_command_says_its_version(typed, capsys):
    typed("--version")
    assert (main(), capsys.readouterr().out) == (0, f"headgates {__version__}\n")
