"""What is written is read again as it was, by the rules of YAML 1.1 and 1.2 alike."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headgates.configs.yaml_file import ConfigError, config_file, dump_yaml, load_yaml

HASHES = st.text(
    "0123456789e", min_size=12, max_size=12
)  # of the texts of hexadecimal digits those that look like numbers
TEXTS = st.one_of(HASHES, st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20))
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)


@given(content=st.dictionaries(TEXTS, VALUES, max_size=5))
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_again(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("yaml") / "config.yaml"
    path.write_text(dump_yaml(content), encoding="utf-8")
    assert load_yaml(path) == content
    assert yaml.safe_load(dump_yaml(content)) == content or not content


TWICE = [1, 2]
NUMBERS = {"lr": 1e-05, "large": 1e22, "end": math.inf, "steps": 30, "twice": [TWICE, TWICE]}
LIKE_NUMBERS = "5212106e1234 1e5 12e-3 0123456789e1 no 2e-3 .inf 0o17 1_000 ~ null"


@pytest.mark.parametrize("content", [NUMBERS, {"": ""}, {"hashes": LIKE_NUMBERS.split()}])
def test_text_that_looks_like_a_number_stays_text_and_numbers_stay_numbers(tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(content), encoding="utf-8")
    assert load_yaml(path) == content


def test_a_configuration_that_ships_is_found_in_any_folder_unless_a_file_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sst2").mkdir()  # a folder of data
    for name in ("toy", "configs/toy.yaml", "sst2", "lambda", "configs/sweeps/lambda.yaml"):
        assert config_file(name).stem == Path(name).stem
        assert load_yaml(config_file(name))
    (tmp_path / "toy").write_text("seed: 7\n")
    assert load_yaml(config_file("toy")) == {"seed": 7}


@pytest.mark.parametrize("name", ["tyo", "mine/toy.yaml", "../configs/toy.yaml"])
def test_an_unknown_configuration_is_told_the_names_that_ship(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean 'toy'.*lambda.*toy_tiny"):
        config_file(name)
