"""What a run on --base takes from that base, what it refuses, and what it says is ignored."""

import pytest

from headgates.configs.cli import read, to_yaml
from headgates.configs.fields import to_dict
from headgates.configs.settings import Settings
from headgates.lab.base_settings import with_base_settings
from headgates.records.folder import RunFolder

BASE = [
    "--data",
    "multi30k",
    "--data-dir",
    "texts",
    "--tgt",
    "fr",
    "--model.d-model",
    "56",
    "--model.heads",
    "7",
    "--model.embeddings",
]
BASE += ["tied-decoder", "--text.joint", "false", "--text.vocab-size", "901", "--train.epochs", "11"]


@pytest.fixture
def base(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "base")
    folder.write_text("config.yaml", to_yaml(read(Settings, [*BASE, "--gate", "none"]), run_hash="a" * 12))
    return folder


def test_model_vocabulary_and_text_are_the_bases(base):
    config = with_base_settings(read(Settings, ["--lambda", "0.3", "--text.max-tokens", "313"]), base)
    assert config.model == read(Settings, BASE).model
    assert (config.text.joint, config.text.vocab_size, config.text.max_tokens) == (False, 901, 313)
    assert (config.data, config.data_dir, config.src, config.tgt, config.lam) == (
        "multi30k",
        "texts",
        "en",
        "fr",
        0.3,
    )


def test_the_same_settings_given_again_are_no_contradiction(base, capsys):
    config = read(Settings, [*BASE, "--seed", "5"])
    assert to_dict(with_base_settings(config, base)) == to_dict(config)
    assert "ignored" not in capsys.readouterr().out


def test_pairs_are_as_short_as_the_positions_of_the_base_unless_a_length_is_given(tmp_path):
    folder = RunFolder(tmp_path / "short")
    short = read(Settings, ["--set", "model.max_positions=37", "--text.max-length", "36", "--gate", "none"])
    folder.write_text("config.yaml", to_yaml(short, run_hash="b" * 12))
    assert with_base_settings(Settings(), folder).text.max_length == 36
    assert with_base_settings(read(Settings, ["--text.max-length", "5"]), folder).text.max_length == 5
    with pytest.raises(ValueError, match=r"--text\.max-length: expected less than model\.max_positions 37"):
        with_base_settings(read(Settings, ["--text.max-length", "90"]), folder)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "--model.d-model 64",
            "--model.d-model 64 contradicts --base .*base, which has 56; leave --model.d-model out",
        ),
        ("--text.vocab-size 77", "--text.vocab-size 77 contradicts"),
        ("--tgt cs", "--tgt cs contradicts"),
    ],
)
def test_a_setting_that_contradicts_the_base_is_refused(base, words, error):
    with pytest.raises(ValueError, match=error):
        with_base_settings(read(Settings, words.split()), base)


def test_another_text_in_the_same_languages_is_taken(base):
    config = with_base_settings(read(Settings, ["--data", "my-text", "--tgt", "fr"]), base)
    assert (config.data, config.data_dir) == ("my-text", None)


def test_training_settings_of_a_base_that_is_trained_already_are_said_to_be_ignored(base, capsys):
    with_base_settings(read(Settings, ["--train.epochs", "20"]), base)
    assert f"ignored: --train.epochs 20; {base.path} is trained already, with 11" in capsys.readouterr().out
