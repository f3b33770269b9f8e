"""Which heads stay, and what does the smaller model say? Asked of every way to an answer: fit, prune, make()
and the library's own calls must agree."""

from pathlib import Path

import pytest

from headgates.analysis.closing import close_to
from headgates.analysis.scores.fisher import fisher, rearranged
from headgates.analysis.scores.importance import importance, raw_importance
from headgates.analysis.scores.obs import obs
from headgates.analysis.scores.random_score import random_score
from headgates.commands import fit, prune
from headgates.configs.recipe import Recipe, Units
from headgates.gates import HeadMap, Subnet, reconstruct
from headgates.pruning import grid
from headgates.pruning.closing import Calibration, real_positions
from headgates.pruning.make import make
from headgates.records.folder import RunFolder, find_runs, recipe_of
from tests.worlds.made_runs import BASE, WORDS, lab_on, opened
from tests.worlds.runs import well

SCORES, REFITS = ("importance", "raw-importance", "random", "obs", "fisher"), (None, "out")
UNTRAINED = [Recipe(score, Units(9), refit=refit) for score in SCORES for refit in REFITS]
TRAINED = [Recipe("importance", Units(9), epochs=1), Recipe("l0", Units(9), epochs=1)]
FLAGS = ["--heads", "9", "--refit", "none,out", "--epochs", "0"]
Answer = tuple[dict[str, list[int]], list[str]]  # the heads of each site that stay, and the outputs


def answers(runs: Path) -> dict[Recipe, Answer]:
    """By the recipes of a folder's finished runs."""
    found = {}
    for run in find_runs(runs):
        recipe = recipe_of(run.config())
        if recipe is not None and recipe.choose != "unpruned":
            found[recipe] = said(run)
    return found


def said(run: RunFolder) -> Answer:
    sites = run.row_of("pruned").subnet["sites"]
    return {name: each["stay"] for name, each in sites.items()}, run.outputs("pruned")


@pytest.fixture(scope="module")
def scores(shared_runs) -> dict[str, HeadMap]:
    """Each score by the library's own call."""
    source = opened(RunFolder(shared_runs / BASE))
    model, loss, batches = source.model, source.task.loss, source.train_batches
    return {
        "importance": importance(model, batches(), loss=loss),
        "raw-importance": raw_importance(model, batches(), loss=loss),
        "random": random_score(model, seed=1),
        "obs": obs(model, batches(), loss=loss, draw=source.task.sampled, seed=1),
        "fisher": fisher(model, batches(), loss=loss),
    }


def by_the_library(runs: Path, scores: dict[str, HeadMap], recipe: Recipe) -> Answer:
    """The model as a user holds it: a score, the lowest closed, weights refitted, the rest removed."""
    source = opened(RunFolder(runs / BASE))
    model, loss = source.model, source.task.loss
    closed = close_to(scores[recipe.choose], recipe.budget.heads)
    if recipe.choose == "fisher":
        closed = rearranged(model, source.train_batches(), closed, loss=loss)
    subnet = Subnet.of(model).without(closed)
    if recipe.refit:
        calibration = Calibration(source, 97)
        reconstruct(model, closed, calibration, calibration.forward, positions=real_positions)
    subnet.remove(model)
    stay = {name: each["stay"] for name, each in subnet.to_json()["sites"].items()}
    return stay, source.task.outputs(source.predictor, source.lines("test", 23)[0])


@pytest.fixture(scope="module")
def by_make(shared_runs) -> dict[Recipe, Answer]:
    lab, base = lab_on(shared_runs)
    return {recipe: said(make(lab, base, recipe).run) for recipe in UNTRAINED + TRAINED}


def differing(ours: dict[Recipe, Answer], theirs: dict[Recipe, Answer]) -> list[str]:
    assert ours.keys() <= theirs.keys()
    return [recipe.title for recipe in ours if ours[recipe] != theirs[recipe]]


def test_prune_answers_as_make_does(tiny, called, by_make):
    well(called(prune)(tiny / BASE, "--by", ",".join(SCORES), *FLAGS, "--threads", "1"))
    well(
        called(prune)(tiny / BASE, "--by", "importance,l0", "--heads", "9", "--epochs", "1", "--threads", "1")
    )
    assert differing(by_make, answers(tiny)) == []


@pytest.fixture
def at_once(called, monkeypatch) -> list[str]:
    """What --jobs would start is run here, by its words; the titles of it."""
    started: list[str] = []

    def run(commands, *rest, **options):
        for title, (_, *words) in commands.items():
            started.append(title)
            well(called(prune)(*words, "--threads", "1"))
        return {}

    monkeypatch.setattr(grid, "at_once", run)
    return started


def test_fit_answers_as_make_does(tiny, called, at_once, by_make):
    well(called(fit)(*WORDS, "--runs", tiny, "--gate", "fisher", "--rivals", "random", *FLAGS))
    for gate in ("importance", "l0"):
        more = ["--rivals", "random", "--jobs", "2"]
        well(called(fit)(*WORDS, "--runs", tiny, "--gate", gate, "--heads", "9", *more))
    assert len(at_once) == len({*at_once}) == 3, "finished rivals are found"
    assert at_once[0].startswith("unpruned"), "others wait for the base trained as long"
    assert len(list(tiny.glob("toy-en-de-none-*"))) == 1, "the base is found"
    asked = {recipe: answer for recipe, answer in by_make.items() if recipe.choose in ("fisher", "l0")}
    assert differing(asked, answers(tiny)) == []


@pytest.mark.parametrize("recipe", UNTRAINED, ids=lambda recipe: recipe.title)
def test_the_library_answers_as_make_does(shared_runs, scores, by_make, recipe):
    assert by_the_library(shared_runs, scores, recipe) == by_make[recipe]
