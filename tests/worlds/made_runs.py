"""A finished tiny base, which the real fit code trains once for the whole suite, and labs that make smaller
models of it: `make(lab, base, recipe)`."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from headgates.commands.fit import FitOptions, plain_settings
from headgates.configs.cli import read_command
from headgates.configs.recipe import Recipe
from headgates.data.shortlist import Shortlist
from headgates.gates import ALL_KINDS, Subnet, attach, detach
from headgates.lab.lab import Lab
from headgates.lab.measure import median_and_range
from headgates.lightning_modules.module import StageModule
from headgates.models.translator import Translator
from headgates.pruning import planning, runtime_cost
from headgates.pruning.base import base_run, settings_of
from headgates.pruning.make import Row, make
from headgates.pruning.runtime_cost import RuntimeCost, TimedLines, TimedPair, compared
from headgates.pruning.shortlisting import mean_rows
from headgates.records.folder import RunFolder
from headgates.records.source import Source, open_source

TINY = Path(__file__).parents[2] / "configs/toy_tiny.yaml"
# 16 heads in four sites, and 192 neurons in three layers; it has learned enough for outputs to differ
FLAGS = "--model.heads 4 --model.encoder-layers 2 --train.epochs 6 --train.lr 0.02 --precision 32 --threads 1"
QUICK = "--set gates.choose_epochs=1 gates.anneal_steps=4 calibration_sentences=97 --gates.lr 0.5"
WORDS = ["--config", str(TINY), *FLAGS.split(), *QUICK.split()]
BASE = "toy-en-de-none-s1"


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory) -> Path:
    """The folder with the base alone; no test writes in it."""
    torch.set_num_threads(1)
    runs = tmp_path_factory.mktemp("tiny") / "runs"
    lab = Lab(plain_settings(read_command(FitOptions, [*WORDS, "--runs", str(runs)])))
    try:
        base_run(lab)
    finally:
        lab.close()
    return runs


def lab_on(runs: Path, **given: Any) -> tuple[Lab, RunFolder]:
    """A lab with the settings of the base in this folder, some changed (dotted names), and the base."""
    base = RunFolder(runs / BASE)
    return Lab(settings_of(base, {"runs": str(runs), "threads": 1, **given})[0]), base


def made_on(runs: Path, recipe: Recipe, **given: Any) -> Row:
    """The row of a recipe, by a lab of its own, which gives its locks back."""
    lab, base = lab_on(runs, **given)
    try:
        return make(lab, base, recipe)
    finally:
        lab.close()


@pytest.fixture
def tiny(tiny_runs, tmp_path) -> Path:
    """A copy of the base's folder of runs, for one test."""
    return Path(shutil.copytree(tiny_runs, tmp_path / "runs"))


@pytest.fixture(scope="session")
def shared_runs(tiny_runs, tmp_path_factory) -> Path:
    """A copy in which tests make runs that others find; none counts on there being no run."""
    return Path(shutil.copytree(tiny_runs, tmp_path_factory.mktemp("shared") / "runs"))


@pytest.fixture
def at_once(monkeypatch) -> None:
    """A timed pass is made once, and parameters stand for the time of a model, without those of output rows
    that a shortlist leaves out: what is tested is no time."""
    monkeypatch.setattr(RuntimeCost, "__call__", parameters_computed)
    whole = property(lambda self: size(self.copied.model) / 1000, lambda self, measured: None)
    monkeypatch.setattr(RuntimeCost, "whole", whole, raising=False)
    monkeypatch.setattr(planning, "compared", by_size)
    monkeypatch.setattr(runtime_cost, "FREE_OPENINGS", 1)
    monkeypatch.setattr(runtime_cost, "REST_MOST", 2)
    monkeypatch.setattr(planning, "TIMED", 41)
    monkeypatch.setattr(runtime_cost, "SHORTEST", 0.0)
    for module in (planning, runtime_cost):
        monkeypatch.setattr(module, "runtimes_of", lambda model: ["torch"])
    monkeypatch.setattr(planning, "VALID", 41)


def parameters_computed(cost: RuntimeCost, model: Any, shortlist: Shortlist | None = None) -> float:
    """Thousands."""
    listed = cost.copied.with_shortlist(shortlist).with_model(model)
    return thousands(listed, [batch.sources for batch in cost.text.batches])


def thousands(translator: Translator, batches: Sequence[list[list[int]]]) -> float:
    """Of the parameters that a search of these sources computes with."""
    output = translator.model.output.weight
    return (size(translator.model) - (len(output) - mean_rows(translator, batches)) * output.shape[1]) / 1000


def by_size(this: Translator, base: Translator, runtime: str, threads: int, text: TimedLines) -> TimedPair:
    """`compared`, in which a model takes as long as it has parameters."""
    outputs, speed = compared(this, base, runtime, threads, text)
    batches = [[*text.ids[at : at + text.batch]] for at in range(0, len(text.ids), text.batch)]
    ratio = thousands(base, batches) / thousands(this, batches)
    return outputs, speed | {"measured": median_and_range([ratio])}


def made_by_a_process(runs: Path, recipe: Recipe, results: Any) -> None:
    """For a process of its own: put how many steps it trained, and its row's run and loss."""
    torch.set_num_threads(1)
    steps, step = [], StageModule.training_step
    StageModule.training_step = lambda self, *rest: (steps.append(1), step(self, *rest))[1]  # type: ignore
    row = made_on(runs, recipe)
    results.put((len(steps), row.run.path.name, row.result.loss))


# ---------------------------------------------------------------- what a run is compared with


def size(model: Any) -> int:
    return sum(each.numel() for each in model.parameters())


def kept(row: Row) -> dict[str, list[int]]:
    """The numbers of the units that stay at each site of the base, by the row's own words."""
    return {name: each["stay"] for name, each in row.result.subnet["sites"].items()}


def opened(run: RunFolder, system: str | None = None) -> Source:
    return open_source(str(run.path), system or run.own_system(), device="cpu")


def logits(source: Source, text: Source | None = None) -> list[torch.Tensor]:
    """What a model says of the validation text of a run, its own by default."""
    text = text or source
    batches = text.data().batches("valid", 4000)
    with torch.no_grad():
        return [source.model(batch.source, batch.target_in) for batch in batches]


def masked_logits(base: RunFolder, row: Row) -> list[torch.Tensor]:
    """What the base says with the row's units at 0, by gates; nothing is removed."""
    source = opened(base)
    units = Subnet.from_json(row.result.subnet).units
    attach(source.model, gate="mask", kinds=ALL_KINDS, xi=units.map(lambda stays: stays.float()))
    try:
        return logits(source)
    finally:
        detach(source.model)
