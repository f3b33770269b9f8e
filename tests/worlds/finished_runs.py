"""A finished run of the tiny language with its bases, labs that a test makes others with, and a model that
gives labels."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from headgates.configs.cli import read_command
from headgates.configs.recipe import Lambda, Recipe, Units
from headgates.configs.settings import Settings
from headgates.lab.lab import Lab
from headgates.lightning_modules import stage as training
from headgates.pruning.base import base_run
from headgates.pruning.make import Row, make
from headgates.records.folder import RunFolder
from headgates.records.source import Source
from tests.lab.labelling import Labeller, Labelling
from tests.worlds.unpruned_model import source_of

LEARNED = Recipe("l0", Lambda(0.1), epochs=2)
TRAINED = Recipe("importance", Units(9), epochs=2)


def made(settings: Settings, recipe: Recipe = LEARNED) -> Row:
    """What a command makes for a recipe: the base, the base trained as long, and the recipe's own."""
    lab = Lab(settings, asked=recipe)
    try:
        row = make(lab, base_run(lab), recipe)
        lab.complete(row.run, row.result.system, base_run(lab))
        return row
    finally:
        lab.close()


@pytest.fixture(scope="session")
def finished(tiny_flags, tmp_path_factory) -> RunFolder:
    """The run of learned gates, with the base and the continued base, in a folder of its own."""
    torch.set_num_threads(1)
    return made(read_command(Settings, [*tiny_flags, "--runs", str(tmp_path_factory.mktemp("finished"))])).run


@pytest.fixture
def runs(finished, tmp_path) -> Path:
    """A copy of all three runs that a test may change."""
    return Path(shutil.copytree(finished.path.parent, tmp_path / "runs"))


@pytest.fixture
def base(runs) -> RunFolder:
    (base,) = runs.glob("*-none-s1")
    return RunFolder(base)


@pytest.fixture
def lab_of(configure) -> Iterator[Callable[..., Lab]]:
    """lab_of(flags..., asked=recipe) -> the lab of the tiny settings with these flags."""
    made = []

    def open_lab(*flags: object, asked: Recipe | None = None) -> Lab:
        made.append(Lab(configure(*map(str, flags)), asked=asked))
        return made[-1]

    yield open_lab
    for lab in made:
        lab.close()


@pytest.fixture
def stages(monkeypatch) -> list[str]:
    """The names of the stages that were trained."""
    trained = []
    run_stage = training.run_stage

    def record(name, *rest, **options):
        trained.append(name)
        return run_stage(name, *rest, **options)

    monkeypatch.setattr(training, "run_stage", record)
    return trained


@pytest.fixture
def labeller(make_dense) -> Callable[[], Source]:
    """labeller() is the untrained model of make_dense as one that gives labels; every fifth reference is
    wrong."""

    def make() -> Source:
        made = make_dense(seed=5)
        predictor = Labeller(made.translator.model, made.translator.source_vocab)
        texts = [
            (lines, ["wrong" if i % 5 == 0 else predictor.label(line) for i, line in enumerate(lines)])
            for lines, _ in map(made.lines, ("valid", "test"))
        ]
        return source_of(made.folder, Labelling(), predictor, *texts)

    return make
