"""Flags, YAML and errors of the command line (configs/cli.py)."""

import dataclasses
import re
from pathlib import Path

import pytest

from headgates.commands.fit import FitOptions
from headgates.configs.cli import (
    ConfigError,
    config_hash,
    flat,
    from_dict,
    parse,
    read_command,
    to_dict,
    to_yaml,
)
from headgates.configs.settings import ModelConfig, Settings
from headgates.configs.yaml_file import dump_yaml

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_text(text, encoding)
    return str(path)


def test_what_imported_models_alone_have_is_no_flag_but_is_read_from_a_file():
    with pytest.raises(ConfigError, match=r"unknown flag --model\.activation"):
        read_command(Settings, ["--model.activation", "gelu"])
    assert from_dict(Settings, {"model": {"activation": "gelu"}}).model.activation == "gelu"


@pytest.mark.parametrize("flag", ["--model.d-model=56", "--model.d_model=56", "--model.d-model 56"])
def test_dashes_and_underscores_are_the_same_in_names(flag):
    assert read_command(Settings, flag.split()).model.d_model == 56


def test_a_rare_setting_is_given_by_a_file_or_by_set(tmp_path):
    for words in (
        ["--set", "gates.beta=0.5"],
        ["--config", write(tmp_path / "a.yaml", "gates: {beta: 0.5}")],
    ):
        assert read_command(Settings, words).gates.beta == 0.5
    assert read_command(Settings, ["--set", "seed=3", "gates.beta=0.5", "--src", "x"]).gates.beta == 0.5
    assert read_command(FitOptions, ["--set=kinds=cross,enc-self"]).kinds == ["cross", "enc-self"]


@pytest.mark.parametrize("null", ["null", "None"])
@pytest.mark.parametrize("name", ["finetune.dropout", "finetune.optimizer", "data_dir", "name"])
def test_a_setting_is_set_back_to_null_by_a_flag_or_an_agent(tmp_path, name, null):
    given = {"finetune": {"dropout": 0.3, "optimizer": "muon"}, "data_dir": "here", "name": "mine"}
    path = write(tmp_path / "a.yaml", dump_yaml(given))
    flag = ["--set"] * name.startswith("finetune") + [f"{name}={null}" if "." in name else f"--{name}={null}"]
    found = to_dict(read_command(Settings, ["--config", path, *flag]))
    assert flat(found)[name] is None


def test_lam_is_spelt_lambda_and_whole_numbers_become_numbers():
    lam = read_command(FitOptions, ["--lambda", "3e-2,0,1"]).lam
    assert (lam, {*map(type, lam)}) == ([0.03, 0.0, 1.0], {float})


@pytest.mark.parametrize(
    "words",
    ["enc-self,cross", "enc-self cross", "enc-self, cross", "[enc-self,cross]", '["enc-self","cross"]'],
)
def test_lists_take_commas_spaces_and_brackets(words):
    found = read_command(FitOptions, ["--heads", "3", "--kinds", *words.split(" "), "--seed", "3"])
    assert found.kinds == ["enc-self", "cross"]


@pytest.mark.parametrize(
    ("argv", "value"),
    [("--resume", True), ("--resume false", False), ("--resume=true --seed 2", True), ("", False)],
)
def test_a_true_or_false_flag_alone_is_true(argv, value):
    assert read_command(Settings, argv.split()).resume is value


def test_a_flag_beats_a_later_yaml_an_earlier_one_and_that_the_default_wherever_it_stands(tmp_path):
    path = write(
        tmp_path / "c.yaml", "seed: 7\nlambda: 2e-3\ntrain: {epochs: 3, warmup-steps: 11}\ndata-dir: here\n"
    )
    earlier = write(tmp_path / "a.yaml", "data_dir: there\nsrc: fr\n")
    words = f"--seed 5 --train.epochs 2 --config {earlier} --config {path}"
    config = read_command(FitOptions, words.split())
    assert (config.seed, config.train.epochs, config.src) == (5, 2, "fr")
    assert (config.lam, config.train.warmup_steps, config.data_dir) == ([0.002], 11, "here")
    assert config.finetune == Settings().finetune


def test_yaml_reads_languages_numbers_and_dates_as_people_mean_them(tmp_path):
    path = write(
        tmp_path / "c.yaml",
        "src: no\ntgt: on\nname: 2024-05-01\nprecision: 32\nlambda: 1\ntrain: {lr: 1e-3}\nkinds: cross\n",
    )
    config = read_command(FitOptions, ["--config", path])
    assert (config.src, config.tgt, config.name, config.precision) == ("no", "on", "2024-05-01", "32")
    assert (config.lam, config.train.lr, config.kinds) == ([1.0], 0.001, ["cross"])


def test_merged_yaml_is_read_back_as_the_same_configuration(tmp_path):
    flags = {"lambda": "1e-7", "src": "no", "name": "007", "kinds": "cross", "train.lr": "3e-4"}
    flags["runs"] = "runs/straße"
    config = read_command(FitOptions, [f"--{name}={value}" for name, value in flags.items()])
    text = to_yaml(config, base_hash="0123456789ab")
    assert "lambda:" in text
    assert "lam:" not in text
    assert read_command(FitOptions, ["--config", write(tmp_path / "config.yaml", text)]) == config


def test_the_hash_sees_values_but_not_the_order_of_keys():
    mapping = to_dict(Settings())
    backwards = dict(reversed(mapping.items()))
    assert config_hash(backwards) == config_hash(mapping)
    assert config_hash(mapping | {"seed": 2}) != config_hash(mapping)
    assert len(config_hash(mapping)) == 12


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ("--lambd 3", ["--lambd;", "did you mean --lambda?"]),
        ("--d-model 3", ["did you mean --model.d-model?"]),
        ("--warmup-steps 3", ["--train.warmup-steps"]),
        ("toy", ["unexpected 'toy'", "--flag VALUE"]),
        ("--lambda", ["--lambda needs a value: a list of numbers"]),
        ("--heads=", ["--heads needs a value"]),  # such as of a shell's variable that is not set
        ("--max-drop=", ["--max-drop needs a value"]),
        ("--jobs 2", ["--jobs: fit makes models side by side whose numbers of heads are given"]),
        ("--slurm a=1", ["--slurm: fit makes models side by side"]),
        ("--slurm a=1 --heads 9 --name x", ["--slurm: fit makes jobs of models beside", "not with --name"]),
        ("--slurm a=1 --gate none", ["not with --gate none"]),
        ("--lambda big", ["--lambda: expected a list of numbers, got 'big'"]),
        ("--lambda -0.5", ["--lambda: expected a number at least 0, got -0.5"]),
        ("--seed 1.5", ["--seed: expected a whole number, got '1.5'"]),
        ("--gate l1", ["--gate: expected some of l0, subset", "got l1"]),
        ("--model.norm per", ["expected one of pre, post, got 'per' (did you mean 'pre'?)"]),
        ("--resume=maybe", ["--resume: expected true or false, got 'maybe'"]),
        ("--rivals obs,importanc", ["--rivals", "did you mean 'importance'?"]),
        ("--heads 3 --rivals plan", ["--rivals: expected scores or gates", "got plan"]),
        ("--kinds all --heads 3 --neurons 16 --rivals loss", ["loss scores no feed-forward neurons"]),
        ("--name a/b", ["--name: expected a plain name, without separators, got 'a/b'"]),
        (
            "--model.heads 7",
            ["--model.heads: expected a divisor of --model.d-model 128, got 7; take 4 or 8 or 16"],
        ),
        ("--model.dropout 1", ["--model.dropout: expected a number at least 0 and below 1, got 1"]),
        ("--set gates.gamma=0", ["gates.gamma: expected a number below 0, got 0"]),
        ("--text.joint false", ["--model.embeddings tied needs --text.joint true"]),
        ("--text.max-length 256", ["--text.max-length", "model.max_positions 256"]),
        ("--gates.beta 1", ["--gates.beta is no flag", "--set gates.beta=VALUE"]),
        (
            "--set gates.bta=1",
            ["--set: expected NAME=VALUE of a setting, got gates.bta=1; did you mean gates.beta?"],
        ),
        ("--config no/such.yaml", ["no/such.yaml: no such file"]),
    ],
)
def test_a_wrong_command_line_is_one_clear_line_and_exit_code_2(capsys, argv, parts):
    with pytest.raises(SystemExit) as stop:
        parse(FitOptions, argv.split(), prog="python fit.py")
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("fit.py: error: ")
    assert "--help" in hint
    assert [part for part in parts if part not in error] == [], error


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lam: 3", ["unknown key lam; did you mean lambda?"]),
        ("model: {dmodel: 3}", ["unknown key model.dmodel; did you mean model.d_model?"]),
        ("model: 3", ["model: expected settings below it (", "got 3"]),
        ("train: {epochs: 2.5}", ["train.epochs: expected a whole number, got 2.5"]),
        ("name: [a]", ["name: expected text or null, got ['a']"]),
        ("seed: 1\nlambda: true", ["lambda: expected a list of numbers, got True"]),
        ("data-dir: a\ndata_dir: b", ["data_dir is given twice"]),
        ("- seed", ["expected `key: value` lines, got list"]),
        ("seed: [1\nname: x", ["line 2: not YAML"]),
    ],
)
def test_a_wrong_yaml_file_is_named_with_its_key(tmp_path, text, parts):
    path = write(tmp_path / "c.yaml", text)
    with pytest.raises(ConfigError) as error:
        read_command(FitOptions, ["--config", path])
    message = str(error.value)
    assert "\n" not in message
    assert [part for part in [path, *parts] if part not in message] == [], message


def test_a_dataclass_made_by_hand_is_checked_like_a_flag():
    with pytest.raises(ValueError, match=r"--model\.heads"):
        Settings(model=ModelConfig(d_model=56, heads=5))
    with pytest.raises(ValueError, match="--lambda"):
        dataclasses.replace(FitOptions(), lam=[float("nan")])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("seed: 1\nseed: 2\n", "line 2: not YAML: seed is given twice; keep one"),
        ("train: {lr: 0.1, lr: 0.2}\n", "line 1: not YAML: lr is given twice; keep one"),
        (
            "train: &a {lr: 0.1}\nfinetune: *a\n",
            r"line 2: not YAML: aliases (*name) are not taken; write the value out",
        ),
        ("[" * 4000 + "]" * 4000, "nested too deep"),
        ("# " + "a" * 2**20, "expected a file of settings, got more than 1 MiB"),
        ("name: straße", "expected UTF-8"),
    ],
    ids=["twice", "twice inside", "an alias", "nested", "large", "latin"],
)
def test_a_yaml_file_that_no_one_means_is_refused_in_one_line(tmp_path, text, error):
    with pytest.raises(ConfigError, match=re.escape(error)) as refused:
        read_command(Settings, ["--config", write(tmp_path / "a.yaml", text, "latin-1")])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_yaml_of_the_repository_is_a_configuration(path):
    read_command(FitOptions, ["--config", str(path)])
