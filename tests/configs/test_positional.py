"""Words before the flags: `prune.py RUN`, `analyze.py RUN [RUN ...]`."""

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgates.configs.cli import ConfigError, from_dict, help_text, parse, read, to_yaml
from headgates.configs.fields import REQUIRED, setting
from headgates.configs.prune import ORDERS, PruneConfig

ROOT = Path(__file__).resolve().parents[2]


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
    config = read(PruneConfig, ["runs/a,b-1", "--step", "0.2", "--fresh"])
    assert (config.source, config.step, config.fresh) == ("runs/a,b-1", 0.2, True)


def test_a_list_takes_every_word_before_the_flags():
    assert read(Many, ["a", "b c", "d,e"]).source == ["a", "b c", "d,e"]
    assert read(Many, ["a", "--seed", "5"]) == Many(["a"], 5)


def test_positional_settings_are_filled_in_their_order_and_may_have_a_default():
    assert read(Two, ["a"]) == Two("a", "here")
    assert read(Two, ["a", "b", "--fast"]) == Two("a", "b", True)


def test_a_source_may_stand_in_yaml_and_the_word_beats_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("source: runs/a\nstep: 0.5\nablate: null\nnormalise: none\n")
    assert read(PruneConfig, ["--config", str(path)]) == PruneConfig("runs/a", step=0.5, normalise="none")
    assert read(PruneConfig, ["runs/b", "--config", str(path)]).source == "runs/b"
    path.write_text("source: [a, b]\n")
    assert read(Many, ["--config", str(path)]).source == ["a", "b"]


def test_a_configuration_with_a_source_is_written_and_read_back(tmp_path):
    config = PruneConfig(
        "runs/a", by=["random", "importance"], ablate="one", normalise="none", recompute=True
    )
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert read(PruneConfig, ["--config", str(tmp_path / "c.yaml")]) == config
    assert from_dict(Many, {"source": ["a"]}) == Many(["a"])


@pytest.mark.parametrize(
    ("config_class", "argv", "parts"),
    [
        (PruneConfig, "", ["SOURCE is missing: give, before the first flag, a run folder"]),
        (Many, "--seed 2", ["SOURCE is missing: give, before the first flag, run folders"]),
        (
            PruneConfig,
            "a b",
            ["unexpected 'b': SOURCE before the flags, then settings are given as --flag VALUE"],
        ),
        (PruneConfig, "--fresh a", ["unexpected 'a': SOURCE before the flags"]),
        (PruneConfig, "a --step 1.1", ["--step: expected a number above 0 and at most 1, got 1.1"]),
        (PruneConfig, "a --by importanec", ["--by", "importance", "did you mean 'importance'?"]),
        (
            PruneConfig,
            "a --set abs=sentense",
            ["abs: expected one of sentence, token, batch, got 'sentense' (did you mean 'sentence'?)"],
        ),
        (
            PruneConfig,
            "a --set normalise=nonn",
            ["normalise: expected one of l2, none or null, got 'nonn' (did you mean 'none'?)"],
        ),
        (PruneConfig, "a --ablate al", ["--ablate: expected one of one, all-but-one or null, got 'al'"]),
        (
            PruneConfig,
            "a --by random --set recompute=true",
            ["recompute is for importance, but --by is random"],
        ),
        (
            PruneConfig,
            "a --ablate one --set abs=token",
            ["abs is for importance, but --by is empty"],
        ),
        (
            PruneConfig,
            "a --by random --sentences 7",
            ["--sentences is for scores that read training pairs (importance, "],
        ),
        (PruneConfig, "a --also toy", ["--also", "give --ablate one too"]),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(capsys, config_class, argv, parts):
    with pytest.raises(SystemExit) as stop:
        parse(config_class, argv.split(), prog="python prune.py")
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    error, hint = err.splitlines()
    assert error.startswith("prune.py: error: ")
    assert "--help" in hint
    assert [part for part in parts if part not in error] == [], error


def test_a_yaml_without_the_source_is_missing_it_too():
    with pytest.raises(ConfigError, match="SOURCE is missing"):
        from_dict(PruneConfig, {"step": 0.5})


def test_help_shows_the_words_first_and_what_they_are():
    text = help_text(PruneConfig, prog="python prune.py")
    assert "usage: python prune.py SOURCE [--config FILE] [--flag VALUE ...]" in " ".join(text.split())
    assert "a run with gates stands for its base" in " ".join(text.split())
    assert "--source" not in text
    assert "python prune.py SOURCE [SOURCE ...] [--config" in help_text(Many, prog="python prune.py")
    assert "python prune.py SOURCE [TARGET] [--config" in help_text(Two, prog="python prune.py")


def test_the_curve_is_by_importance_unless_another_order_or_an_ablation_is_asked_for():
    assert PruneConfig("a").orders == ["importance"]
    assert PruneConfig("a", ablate="one").orders == []
    assert PruneConfig("a", ablate="one", by=["random"]).orders == ["random"]
    assert read(PruneConfig, ["a", "--by", "importance,ablation", "random"]).orders == [
        "importance",
        "ablation",
        "random",
    ]
    assert dataclasses.replace(PruneConfig("a"), by=list(ORDERS)).orders == ORDERS


def test_help_into_a_pipe_that_closes_early_is_no_traceback():
    command = f"{sys.executable} prune.py --help | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: python prune.py SOURCE")
    assert done.stderr == ""
