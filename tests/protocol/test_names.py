"""Default names of runs: what is in them, and what happens where another configuration has the name."""

import pytest

from protocol.experiment import Experiment

FEW = ("--systems", "base,l0", "--train.epochs", "1", "--finetune.epochs", "1")


def test_a_taken_default_name_is_refused_or_gets_a_hash_where_runs_are_to_be_unique(configure):
    first = Experiment(configure(*FEW)).run()
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        Experiment(configure(*FEW, "--gates.lr", "0.4")).run()
    other = Experiment(configure(*FEW, "--gates.lr", "0.4", "--unique")).run()
    assert other.path.name.startswith(first.path.name + "-")
    assert other.config()["unique"] is False  # how the folder was found is not part of the run


def test_a_run_that_gates_some_kinds_alone_says_which(configure):
    run = Experiment(configure(*FEW, "--kinds", "cross,enc-self")).run()
    assert run.path.name.endswith("-l0-0.1-enc-self+cross-s1")
