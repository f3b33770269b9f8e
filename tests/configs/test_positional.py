"""Words before the flags: `prune.py RUN`, `analyze.py RUN [RUN ...]`."""

from dataclasses import dataclass

import pytest

from headgates.configs.cli import ConfigError, help_text, read_command
from headgates.configs.fields import REQUIRED, setting


@dataclass(frozen=True)
class One:
    """One run."""

    source: str = setting(REQUIRED, "a run folder", positional=True)
    step: float = setting(0.1, "A step.")
    by: list[str] = setting([], "Names.")  # noqa: RUF009
    fresh: bool = setting(False, "Anew.")


@dataclass(frozen=True)
class Many:
    """Several sources."""

    source: list[str] = setting(REQUIRED, "run folders", positional=True)  # noqa: RUF009
    seed: int = setting(3, "a seed")


@dataclass(frozen=True)
class Two:
    """One word, then one that may be left out."""

    source: str = setting(REQUIRED, "a run folder", positional=True)
    target: str = setting("here", "a place", positional=True)
    fast: bool = setting(False, "fast")


def test_the_word_before_the_flags_is_the_source():
    config = read_command(One, ["runs/a,b-1", "--step", "0.2", "--fresh"])
    assert (config.source, config.step, config.fresh) == ("runs/a,b-1", 0.2, True)


def test_a_list_takes_every_word_before_the_flags():
    assert read_command(Many, ["a", "b c", "d,e"]).source == ["a", "b c", "d,e"]
    assert read_command(Many, ["a", "--seed", "5"]) == Many(["a"], 5)


def test_positional_settings_are_filled_in_their_order_and_may_have_a_default():
    assert read_command(Two, ["a"]) == Two("a", "here")
    assert read_command(Two, ["a", "b", "--fast"]) == Two("a", "b", True)


def test_a_source_may_stand_in_yaml_and_the_word_beats_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("source: runs/a\nstep: 0.5\n")
    assert read_command(One, ["--config", str(path)]) == One("runs/a", step=0.5)
    assert read_command(One, ["runs/b", "--config", str(path)]).source == "runs/b"
    path.write_text("source: [a, b]\n")
    assert read_command(Many, ["--config", str(path)]).source == ["a", "b"]


@pytest.mark.parametrize(
    ("config_class", "argv", "error"),
    [
        (One, "", "SOURCE is missing: give, before the first flag, a run folder"),
        (Many, "--seed 2", "SOURCE is missing: give, before the first flag, run folders"),
        (One, "a b", "unexpected 'b': SOURCE before the flags, then settings are given as --flag VALUE"),
        (One, "--fresh a", "unexpected 'a': SOURCE before the flags"),
    ],
)
def test_a_word_that_is_missing_or_too_many_is_named(config_class, argv, error):
    with pytest.raises(ConfigError, match=error):
        read_command(config_class, argv.split())


def test_help_shows_the_words_first_and_what_they_are():
    text = help_text(One, prog="python prune.py")
    assert "usage: python prune.py SOURCE [--config FILE] [--flag VALUE ...]" in " ".join(text.split())
    assert "--source" not in text
    assert "python prune.py SOURCE [SOURCE ...] [--config" in help_text(Many, prog="python prune.py")
    assert "python prune.py SOURCE [TARGET] [--config" in help_text(Two, prog="python prune.py")
