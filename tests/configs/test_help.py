"""Help that a terminal holds, in whole sentences, and one meaning of a flag in all commands."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgates.configs.cli import help_text, read_command
from headgates.configs.fields import Setting, all_settings
from tests.configs.commands import EVERY, options_of

ROOT = Path(__file__).resolve().parents[2]
SCREENS = 2 * 24  # lines
WIDE = 110


@pytest.fixture(params=EVERY)
def command(request) -> str:
    return request.param


def asked(command: str, flag: str) -> str:
    """What a command prints where it is asked for help."""
    (first, *_) = options_of(command)
    return help_text(first, prog=f"headgates {command}", everything=flag == "--help-all")


def described(command: str) -> list[Setting]:
    every = [each for options in options_of(command) for each in all_settings(options)]
    return [each for each in every if each.about.help and not each.about.positional]


def test_help_fits_two_screens_and_no_line_is_wide(command):
    lines = asked(command, "--help").splitlines()
    assert [line for line in (*lines, *asked(command, "--help-all").splitlines()) if len(line) > WIDE] == []
    assert len(lines) <= SCREENS


def test_every_flag_is_described_by_a_whole_sentence(command):
    found = described(command)
    assert found
    wrong = [f"{each.name}: {each.about.help}" for each in found if not is_sentence(each.about.help)]
    assert wrong == []


def is_sentence(text: str) -> bool:
    return text.endswith(".") and not text[0].isspace() and "  " not in text and "\n" not in text


def test_every_setting_is_in_the_whole_help(command):
    (first, *_) = options_of(command)
    flags = [each for each in all_settings(first) if each.has_flag and not each.about.positional]
    whole = asked(command, "--help-all")
    assert [each.flag for each in flags if each.flag not in whole] == []
    rare = [each.name for each in all_settings(first) if each.about.rare and each.about.help]
    assert [name for name in rare if name not in whole] == []


def test_the_examples_of_every_help_are_commands_that_it_takes(command):
    options = options_of(command)
    spoken = f"headgates {command}"
    lines = asked(command, "--help").splitlines()
    examples = [line for line in lines if f"{spoken} " in line and "usage" not in line]
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example.partition(spoken)[2].partition("   ")[0].partition(" < ")[0])
        taken = [each for each in options if takes(each, words)]
        assert taken, example


def takes(options: type, words: list[str]) -> bool:
    try:
        read_command(options, words)
    except ValueError:
        return False
    return True


def test_one_flag_means_the_same_in_all_commands():
    """What it takes, how it is described, its default, unless one leaves that to the run (None)."""
    known: dict[str, tuple[str, tuple, Any]] = {}
    wrong = []
    for command in (each.values[0] for each in EVERY):
        for setting in described(command):
            about = setting.about
            limits = about.at_least, about.above, about.at_most, about.below, setting.choices
            takes_a = getattr(setting.hint, "__name__", str(setting.hint)).removesuffix(" | None")
            here = takes_a, about.help, about.rare, limits
            other, there, default = known.setdefault(setting.name, (command, here, setting.default))
            if here != there or (None not in (default, setting.default) and default != setting.default):
                wrong.append(f"{setting.flag} of {other} and {command}")
    assert wrong == []


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_what_is_asked_without_a_configuration_is_answered_without_torch(flag):
    script = (
        "import sys\nfrom headgates.commands import fit\n"
        f"sys.argv = ['headgates fit', '{flag}', 'bash']\n"
        "try:\n    fit.main()\n"
        "finally:\n    print('heavy:', {'torch', 'pytorch_lightning', 'numpy'} & set(sys.modules))\n"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "heavy: set()" in done.stdout


def test_help_into_a_pipe_that_closes_early_is_no_traceback():
    command = f"{sys.executable} prune.py --help | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: python prune.py SOURCE")
    assert done.stderr == ""
