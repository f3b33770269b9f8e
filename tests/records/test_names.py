"""Default names of runs: what is in them, what happens where another configuration has the name, and what a
base is not told."""

from dataclasses import replace

import pytest

from headgates.lab.lab import Lab
from headgates.pruning.protocol import make_runs

FEW = ("--systems", "base,l0", "--finetune.epochs", "1")


def test_a_taken_default_name_is_refused_or_gets_a_hash_where_runs_are_to_be_unique(
    runs, finished, configure
):
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        make_runs(configure(*FEW))
    other = make_runs(configure(*FEW, "--unique"))
    assert other.path.name.startswith(finished.path.name + "-")
    assert other.config()["unique"] is False  # how the folder was found is not part of the run


def test_a_method_with_a_number_of_heads_has_bases_without(configure):
    config = replace(configure(*FEW), gate="subset", heads=5, systems=["base"])
    lab = Lab(config)
    try:
        with lab.run("base", gate="none") as base, lab.run("gated", gate="subset", on=base.folder) as gated:
            pass
    finally:
        lab.close()
    assert [(run["gate"], run["heads"]) for run in (base.folder.config(), gated.folder.config())] == [
        ("none", None),
        ("subset", 5),
    ]
