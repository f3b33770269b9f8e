"""A finished run of the tiny language with its bases, and which stages a test trains."""

import shutil

import pytest
import torch

from headgates.configs.cli import read
from headgates.configs.schema import FitConfig
from headgates.workbench import lab as labs
from headgates.workbench.folder import RunFolder
from headgates.workbench.protocol import make_runs


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
def scored(base, tiny_flags):
    """scored(words...) is the configuration of a run of scores on the base."""
    place = tiny_flags.index("--lambda")  # a price, where a number is told
    flags = [
        *tiny_flags[:place],
        *tiny_flags[place + 2 :],
        "--runs",
        str(base.path.parent),
        "--base",
        str(base.path),
        "--gate",
        "scores",
    ]
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
