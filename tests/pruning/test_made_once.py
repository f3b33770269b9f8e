"""A recipe's run is made once: found again by what it depends on, resumed where it was cut off, and waited
for while another process makes it."""

import json
import shutil
import sys
from dataclasses import replace
from importlib import invalidate_caches
from pathlib import Path

import pytest
import torch

from headgates.configs.cli import config_hash
from headgates.configs.recipe import Lambda, MaxDrop, Recipe, Share, Speed, Units
from headgates.gates import ALL_KINDS
from headgates.lab import lab as lab_room
from headgates.lab.evaluation import Evaluation
from headgates.lab.lab import Run
from headgates.lightning_modules.module import StageModule
from headgates.models.checkpoint import load_file
from headgates.models.translator import Translator
from headgates.pruning import new_models, scores
from headgates.pruning.make import make, recipe_key
from headgates.pruning.planning import Planning
from headgates.pruning.smaller_model import narrower
from headgates.records.run_lock import RunLocks
from tests.worlds.made_runs import lab_on, made_by_a_process, made_on
from tests.worlds.ranks import forks

NINE = Units(heads=9)
TRAINED = Recipe("importance", NINE, refit="out", epochs=1)


class PowerCut(Exception):
    pass


def cut_power(patch: pytest.MonkeyPatch, owner: type, method: str, at: int) -> None:
    """The call number `at` of a method, from 1, raises PowerCut."""
    calls, usual = [], getattr(owner, method)

    def counted(self, *rest, **options):
        calls.append(method)
        if len(calls) == at:
            raise PowerCut
        return usual(self, *rest, **options)

    patch.setattr(owner, method, counted)


@pytest.fixture
def continued(shared_runs, tiny) -> Path:
    """The folder of the base and the base trained on, which is not what is cut off."""
    run = made_on(shared_runs, TRAINED.trained_as_long).run
    shutil.copytree(run.path, tiny / run.path.name)
    return tiny


def test_a_second_call_trains_scores_and_translates_nothing(shared_runs, monkeypatch):
    first = made_on(shared_runs, TRAINED)
    for owner, name in (
        (StageModule, "training_step"),
        (Translator, "translate"),
        (scores, "compute_scores"),
    ):
        monkeypatch.setattr(owner, name, None)
    again = made_on(shared_runs, TRAINED)
    assert again.run.path == first.run.path
    assert (again.result, again.scored.values) == (first.result, first.scored.values)


CUTS = {
    "while it trains": (TRAINED, 3),
    "while gates choose": (Recipe("l0", NINE, refit="out", epochs=1), 4),
    "between two numbers of heads": (Recipe("l0", MaxDrop(100.0, (9, 4)), epochs=1), 10),
    "between two prices": (Recipe("l0", MaxDrop(100.0, prices=(0.01, 0.03)), epochs=1), 10),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_run_that_is_cut_off_resumes_as_if_it_had_not_been(shared_runs, continued, monkeypatch, name):
    recipe, step = CUTS[name]
    whole = made_on(shared_runs, recipe)
    with monkeypatch.context() as patch:
        cut_power(patch, StageModule, "training_step", step)
        with pytest.raises(PowerCut):
            made_on(continued, recipe, checkpoint_steps=2)
    with pytest.raises(ValueError, match="is unfinished: --resume continues it"):
        made_on(continued, recipe)
    resumed = made_on(continued, recipe, checkpoint_steps=2, resume=True)
    left, right = (load_file(row.run / "best.pt")["model"] for row in (whole, resumed))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert resumed.run.outputs("pruned") == whole.run.outputs("pruned")
    assert (resumed.result.subnet, resumed.result.path) == (whole.result.subnet, whole.result.path)
    names = [{path.relative_to(row.run.path) for path in row.run.path.rglob("*")} for row in (whole, resumed)]
    assert names[0] == names[1]


@pytest.mark.parametrize(("choose", "step"), [("plan", 3), ("importance", 3), ("l0", 9)])  # after its gates
def test_a_choice_that_is_cut_off_while_it_trains_is_not_made_again(continued, monkeypatch, choose, step):
    # timings of now would give another shape, which the trained weights do not fit
    recipe = Recipe(choose, Share("params", 0.8), ALL_KINDS, refit="out", epochs=1)
    with monkeypatch.context() as patch:
        cut_power(patch, StageModule, "training_step", step)
        with pytest.raises(PowerCut):
            made_on(continued, recipe, checkpoint_steps=2)
    (kept,) = continued.rglob("choice.json")
    whole = kept.read_text()
    kept.write_text(json.dumps(json.loads(whole) | {"subnet": {}}))
    with pytest.raises(ValueError, match=r"choice\.json is not what this program writes: expected a subnet"):
        made_on(continued, recipe, resume=True)
    kept.write_text(whole)
    for name in ("searched", "lowest_first"):
        monkeypatch.setattr(Planning, name, None)
    assert made_on(continued, recipe, resume=True).result.subnet is not None


def test_the_sizes_of_a_uniform_model_are_not_timed_again_where_its_training_goes_on(continued, monkeypatch):
    recipe = Recipe("uniform", Speed(1.2, "torch", 7), ALL_KINDS, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(new_models, "largest_model", lambda model, *_: ([*narrower(model)][1], 0.5))
        cut_power(patch, StageModule, "training_step", 3)
        with pytest.raises(PowerCut):
            made_on(continued, recipe, checkpoint_steps=2)
    monkeypatch.setattr(new_models, "largest_model", None)
    assert made_on(continued, recipe, resume=True).result.speed is not None


def test_a_choice_whose_training_ended_in_an_error_leaves_nothing(continued, monkeypatch):
    def refused(*_):
        raise ValueError("the loss is no number")

    monkeypatch.setattr(StageModule, "training_step", refused)
    with pytest.raises(ValueError, match="no number"):
        made_on(continued, Recipe("plan", Share("params", 0.8), ALL_KINDS, epochs=1))
    assert not [*continued.rglob("choice.json")]  # which the next run of that name would take


def test_a_run_that_is_cut_off_in_its_evaluation_trains_nothing_again(continued, monkeypatch, stages):
    with monkeypatch.context() as patch:
        cut_power(patch, Evaluation, "add", 1)
        with pytest.raises(PowerCut):
            made_on(continued, TRAINED)
    assert stages == ["training"]
    made_on(continued, TRAINED, resume=True)
    assert stages == ["training"]


def test_what_cannot_be_made_leaves_no_folder(tiny):
    before = sorted(tiny.iterdir())
    for recipe, message in {
        Recipe("importance", Units(heads=17)): "cannot keep 17 of 16 heads",
        Recipe("l0", Units(heads=17), epochs=0): "cannot keep 17 of 16",
        Recipe("loss", Units(9, 96), ALL_KINDS): "scores no feed-forward neurons",
    }.items():
        with pytest.raises(ValueError, match=message):
            made_on(tiny, recipe)
        assert sorted(tiny.iterdir()) == before


def test_two_processes_do_not_make_one_run_twice(continued):
    context = forks()
    results = context.Queue()
    both = [context.Process(target=made_by_a_process, args=(continued, TRAINED, results)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    found = sorted(results.get(timeout=5) for _ in both)
    assert found[0][0] == 0 < found[1][0]
    assert found[0][1:] == found[1][1:]


def test_a_run_trains_while_another_process_makes_what_it_is_compared_with(
    tiny, tmp_path, monkeypatch, stages
):
    whole = made_on(Path(shutil.copytree(tiny, tmp_path / "in turn")), TRAINED)
    (lab, base), elsewhere = lab_on(tiny), RunLocks()
    elsewhere.hold(tiny, config_hash(recipe_key(lab, base, TRAINED.trained_as_long)))
    train_on = Run.train_on

    def freed(*given, **how):
        result = train_on(*given, **how)
        elsewhere.release()
        return result

    monkeypatch.setattr(Run, "train_on", freed)
    made = made_on(tiny, TRAINED)
    assert stages == ["base-continued", "training", "training", "base-continued"]
    rows = [[(each.system, each.measures, each.loss) for each in row.run.rows()] for row in (made, whole)]
    assert rows[0] == rows[1]
    assert made.result.reference == whole.result.reference


def test_with_wandb_no_run_is_left_to_be_made_within_another(tiny):
    (lab, base), elsewhere = lab_on(tiny), RunLocks()
    key = recipe_key(lab, base, TRAINED.trained_as_long)
    elsewhere.hold(tiny, config_hash(key))
    assert lab.is_made_elsewhere(key)
    lab.settings = replace(lab.settings, logger="wandb")
    assert not lab.is_made_elsewhere(key)
    elsewhere.release()


def test_fresh_repeats_each_run_and_each_score_of_a_command_once(tiny, monkeypatch):
    recipes = [Recipe(choose, NINE) for choose in ("importance", "raw-importance")]
    lab, base = lab_on(tiny)
    for recipe in recipes:
        make(lab, base, recipe)
    counted, usual = [], scores.compute_scores

    def compute(score, request):
        counted.append(request.file)
        return usual(score, request)

    monkeypatch.setattr(scores, "compute_scores", compute)
    lab, base = lab_on(tiny, fresh=True)
    rows = [make(lab, base, recipe) for recipe in (*recipes, *recipes)]
    assert [row.run.path for row in rows[:2]] == [row.run.path for row in rows[2:]]
    assert len(counted) == 2, "both share one file, which each recipe's score makes anew"
    claimed, claim = [], lab_room.claim_run

    def claim_run(config, name, *rest, fresh, **options):
        claimed.append((name, fresh))
        return claim(config, name, *rest, fresh=False, **options)

    monkeypatch.setattr(lab_room, "claim_run", claim_run)
    lab, base = lab_on(tiny, fresh=True)
    for recipe in (*recipes, *recipes):
        make(lab, base, recipe)
    assert [fresh for _, fresh in claimed] == [True, True, False, False]


OWN = """import torch
from headgates.gates import HeadMap, find_sites

def score(model, batches):
    return HeadMap({{site: {sign} * torch.arange(site.heads).double() for site in find_sites(model)}})
"""


def test_an_edited_score_of_the_users_own_is_computed_again(tiny, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for sign in (1, -1):
        (tmp_path / "own_score.py").write_text(OWN.format(sign=sign))
        monkeypatch.delitem(sys.modules, "own_score", raising=False)
        invalidate_caches()
        row = made_on(tiny, Recipe("own_score:score", Units(heads=4)))
        found.append((row.run.path, {*map(tuple, row.result.heads_by_site.values())}))
    (first, old), (second, new) = found
    assert (old, new) == ({(3,)}, {(0,)})
    assert first != second  # and neither is lost


# ---------------------------------------------------------------- what a run is found by

LEARNED = Recipe("l0", NINE, epochs=1)
PLAIN = Recipe("importance", NINE)
MATTERS = {
    "finetune.lr": (0.5, [TRAINED, LEARNED], [PLAIN]),
    "distill.weight": (0.5, [TRAINED], [PLAIN]),
    "gates.lr": (0.9, [LEARNED], [TRAINED, PLAIN]),
    "gates.beta": (0.9, [LEARNED], [Recipe("subset", NINE, epochs=1)]),
    "sentences": (7, [PLAIN, TRAINED], [Recipe("random", NINE)]),
    "calibration_sentences": (7, [TRAINED], [PLAIN, LEARNED]),
    "search.beam": (3, [PLAIN, TRAINED, LEARNED], []),
    "test_sentences": (7, [PLAIN, TRAINED, LEARNED], []),
    "text.train_sentences": (7, [PLAIN, TRAINED, LEARNED], []),
    "threads": (2, [], [PLAIN, TRAINED, LEARNED]),
}


@pytest.mark.parametrize("name", MATTERS)
def test_a_run_is_another_only_where_a_setting_changes_what_it_is(shared_runs, name):
    value, others, same = MATTERS[name]
    plain, changed = lab_on(shared_runs), lab_on(shared_runs, **{name: value})

    def differs(recipe: Recipe) -> bool:
        return len({config_hash(recipe_key(*each, recipe)) for each in (plain, changed)}) == 2

    assert [differs(recipe) for recipe in others] == [True] * len(others)
    assert [differs(recipe) for recipe in same] == [False] * len(same)


def test_runs_of_other_recipes_are_others(shared_runs):
    recipes = [
        PLAIN, TRAINED, LEARNED, Recipe("importance", NINE, seed=2), Recipe("importance", Units(8)),
        Recipe("importance", NINE, closed_output="mean"), Recipe("raw-importance", NINE),
        Recipe("l0", Lambda(0.1), epochs=1), Recipe("l0", Lambda(0.2), epochs=1),
    ]  # fmt: skip
    lab, base = lab_on(shared_runs)
    assert len({config_hash(recipe_key(lab, base, recipe)) for recipe in recipes}) == len(recipes)
