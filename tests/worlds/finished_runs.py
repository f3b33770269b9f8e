"""A finished run of the tiny language with its bases, which stages a test trains, and a model that gives
labels."""

import shutil

import pytest
import torch

from headgates.configs.cli import read
from headgates.configs.schema import FitConfig
from headgates.lab import lab as labs
from headgates.pruning.protocol import make_runs
from headgates.records.folder import RunFolder
from tests.lab.labelling import Labeller, Labelling
from tests.worlds.unpruned_model import as_dense


@pytest.fixture(scope="session")
def finished(tiny_flags, tmp_path_factory):
    """A run, with its base and the continued base, in a folder of its own."""
    torch.set_num_threads(1)
    return make_runs(read(FitConfig, [*tiny_flags, "--runs", str(tmp_path_factory.mktemp("finished"))]))


@pytest.fixture
def runs(finished, tmp_path):
    """A copy of all three runs that a test may change."""
    return shutil.copytree(finished.path.parent, tmp_path / "runs")


@pytest.fixture
def base(runs) -> RunFolder:
    (base,) = runs.glob("*-none-s1")
    return RunFolder(base)


@pytest.fixture
def scored(base, unpriced):
    """scored(words...) is the configuration of a run of scores on the base."""
    flags = [*unpriced, "--runs", str(base.path.parent), "--base", str(base.path), "--gate", "scores"]
    return lambda *words: read(FitConfig, [*flags, *map(str, words)])


@pytest.fixture
def stages(monkeypatch):
    """The names of the stages that were trained."""
    trained = []
    run_stage = labs.run_stage

    def record(name, *rest, **options):
        trained.append(name)
        return run_stage(name, *rest, **options)

    monkeypatch.setattr(labs, "run_stage", record)
    return trained


@pytest.fixture
def labeller(make_dense):
    """labeller() is the untrained model of make_dense as one that gives labels; every fifth reference is
    wrong."""

    def make():
        made = make_dense(seed=5)
        predictor = Labeller(made.translator.model, made.translator.source_vocab)
        texts = [
            (lines, ["wrong" if i % 5 == 0 else predictor.label(line) for i, line in enumerate(lines)])
            for lines, _ in (made.valid, made.test)
        ]
        return as_dense(made.folder, Labelling(), predictor, *texts)

    return make
