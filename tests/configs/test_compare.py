"""What compare.py can be told, and what is refused before anything is opened."""

import pytest

from headgates.configs import compare
from headgates.configs.cli import ConfigError, read
from headgates.configs.compare import CompareConfig, usual_methods
from headgates.configs.methods import METHODS


def config(*words: object) -> CompareConfig:
    return read(CompareConfig, ["runs/base", *map(str, words)])


def test_every_method_and_score_can_be_named():
    assert config("--methods", "importance,weight-norm,random").methods == [
        "importance",
        "weight-norm",
        "random",
    ]
    told = [name for name in METHODS if METHODS[name].controlled_by == "heads"]
    assert usual_methods()[: len(told)] == told
    assert {"importance", "random"} <= set(usual_methods())


def test_lists_of_numbers_are_read():
    found = config(
        "--methods",
        "l0,importance",
        "--lambdas",
        "0.01,0.5",
        "--heads",
        "36,24",
        "--finetune",
        "0,3",
        "--seeds",
        3,
        "--seed",
        5,
    )
    assert (found.lambdas, found.heads, found.finetune, found.all_seeds) == (
        [0.01, 0.5],
        [36, 24],
        [0, 3],
        [5, 6, 7],
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--methods", "importanc"], "did you mean 'importance'"),
        (["--methods", "l0"], "l0 is controlled by lambda and takes no number of heads: give --lambdas"),
        (
            ["--methods", "importance", "--lambdas", "0.1"],
            "none of the methods importance is controlled by lambda; leave it out",
        ),
        (
            ["--methods", "l0", "--lambdas", "0.1", "--finetune", 0],
            "--finetune 0 has no training, so l0 would have no point",
        ),
        (["--methods", "obs:glue"], "--methods: expected some of .*, SCORE\\[:CLOSING\\], where"),
        (["--heads", -3], "--heads: expected a number at least 0, got -3"),
        (["--heads", "3,3"], "--heads: expected numbers, each once and separated by commas; got 3, 3"),
        (["--heads", "many"], "--heads: expected a list of whole numbers"),
        (["--lambdas", "much", "--methods", "l0"], "--lambdas: expected a list of numbers"),
        (["--finetune", -1], "--finetune: expected a number at least 0, got -1"),
        (["--seeds", 0], "--seeds: expected a number at least 1, got 0"),
        (["--jobs", -1], "--jobs: expected a number at least 0, got -1"),
        (["--name", "a/b"], "--name: expected a plain name"),
        (["--fit", "no/such.yaml"], "there is none at no/such.yaml"),
    ],
)
def test_what_makes_no_sense_is_refused(words, error):
    with pytest.raises(ConfigError, match=error):
        config(*words)


def test_a_new_method_is_simply_there(monkeypatch):
    monkeypatch.setitem(compare.METHODS, "first", compare.METHODS["l0"])
    assert config("--methods", "first,obs", "--lambdas", "0.1").methods == ["first", "obs"]
