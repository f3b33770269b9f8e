"""Default names of runs: what is in them, what happens where another configuration has the name, and what a
base is not told."""

from dataclasses import replace

import pytest

from headgates.configs import schema
from headgates.configs.methods import METHODS
from headgates.workbench.experiment import Experiment

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


def test_a_method_that_is_told_a_number_of_heads_has_bases_that_are_not(configure, monkeypatch):
    monkeypatch.setitem(METHODS, "first", replace(METHODS["l0"], name="first", steered_by="heads"))
    schema.GATES.append("first")
    try:
        experiment = Experiment(replace(configure(*FEW), gate="first", heads=5, systems=["base"]))
        for gate, heads in (("none", None), ("first", 5)):
            folder, _ = experiment.claim_folder(f"run-{gate}", {"gate": gate}, gate=gate)
            assert (folder.config()["gate"], folder.config()["heads"]) == (gate, heads)
    finally:
        schema.GATES.remove("first")
        experiment.locks.release()
