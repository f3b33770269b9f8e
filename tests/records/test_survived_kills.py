"""A run that is killed (kill -9) several times at random moments, and resumed, leaves the files of one that
was not: bit by bit."""

import random
from pathlib import Path

import pytest

from headgates.configs.recipe import Lambda, Recipe, Units
from tests.worlds.killed import PLANNED, Fork, left_of

# every kind of stage, the ways gates become exact, and what may be beside them
RUNS = {
    "priced": (
        Recipe("l0", Lambda(0.1), epochs=2),
        "--distill.weight 0.3 --gates.settle 0.5 --train.optimizer muon --train.accumulate 3",
    ),
    "chosen first": (
        Recipe("l0", Units(9), refit="out", epochs=2),
        "--set gates.choose_epochs=2",
    ),
    "from random weights": (Recipe("scratch", Units(9), epochs=1), "--train.epochs 2"),
}
KILLS = 2


@pytest.fixture(scope="module")
def fork() -> Fork:
    return Fork()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(name, fork, tiny_flags, tmp_path):
    recipe, words = RUNS[name]
    flags = [*tiny_flags, *words.split(), "--resume", "--set", "checkpoint_steps=2"]
    code, moments = fork.fit([*flags, "--runs", str(tmp_path / "whole")], recipe)
    assert code == 0
    rng, deaths = random.Random(name), 0
    for _ in range(KILLS):
        # some soon after the last, where a checkpoint is read and written again
        code, _ = fork.fit(
            [*flags, "--runs", str(tmp_path / "killed")],
            recipe,
            deadly=rng.randint(1, rng.choice([20, 2 * moments // KILLS])),
        )
        if code == 0:
            break
        assert code == PLANNED
        deaths += 1
    if code != 0:
        code, _ = fork.fit([*flags, "--runs", str(tmp_path / "killed")], recipe)
    assert code == 0
    assert deaths
    whole, killed = left_of(tmp_path / "whole"), left_of(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert [path for path in whole if whole[path] != killed[path]] == []
    assert any(Path(path).name == "metrics.csv" for path in whole)
    assert any(path.endswith("best.pt") for path in whole)
