"""The fingerprint changes with all that a model and its measures depend on, and with nothing else."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from headgates.configs.cli import config_hash
from headgates.configs.learned import LEARNED
from headgates.configs.recipe import UNPRUNED, Lambda, Listed, Pieces, Recipe, Share, Speed, Units
from headgates.configs.settings import Settings
from headgates.configs.stages import GateTraining
from headgates.data import Corpus
from headgates.data.file_digest import file_digest
from headgates.data.text import ParallelText
from headgates.pruning.choosers import score_of
from headgates.records.fingerprint import base_fingerprint, files_of, recipe_fingerprint

TEXT = ParallelText(["a"], ["b"])
CORPUS = Corpus(name="text", train=TEXT, valid=TEXT, test=TEXT, description="")
OTHER = replace(CORPUS, train=ParallelText(["a a"], ["b"]))
GIVEN = {"corpus": CORPUS, "precision": "32", "base_hash": "b", "test": (["a"], ["b"]), "sampled": None}
PLAIN = Settings()

LEARNT = Recipe("l0", Lambda(0.01), epochs=3)
SCORED = Recipe("importance", Units(9))
CLOSED = replace(SCORED, refit="out")
TRAINED = replace(SCORED, epochs=3)
CONTINUED = Recipe(UNPRUNED, Units(), epochs=3)
BASE = None  # in the place of a recipe
ALL = {"base": BASE, "learnt": LEARNT, "scored": SCORED, "refitted": CLOSED}
ALL |= {"trained": TRAINED, "unpruned": CONTINUED}


def key(recipe: Recipe | None, settings: Settings = PLAIN, **changes: Any) -> str:
    given = GIVEN | changes
    if recipe is None:
        return config_hash(base_fingerprint(settings, given["corpus"], given["precision"]))
    return config_hash(recipe_fingerprint(settings, recipe, **given))


def changed(value: Any) -> Any:
    """Another value that is as good."""
    if isinstance(value, bool):
        return not value
    return value * 1.125 or 0.125 if isinstance(value, float) else value + 1


def ways(group: str, names: list[str]) -> Iterator[Settings]:
    """The plain settings with one of the group's changed."""
    others = {"optimizer": "adamw", "norm": "post", "dropout": 0.125, "average": 0.5}
    part = getattr(PLAIN, group)
    for name in names:
        value = others[name] if name in others else changed(getattr(part, name))
        yield replace(PLAIN, **{group: replace(part, **{name: value})})


FINETUNE, TRAIN = ["lr", "muon_lr", "warmup_steps", "dropout", "optimizer"], ["lr", "warmup_steps", "epochs"]
RATES = ["clip", "weight_decay", "label_smoothing", "average", "accumulate"]  # also of training on
SEARCH = ["beam", "length_penalty", "max_ratio", "max_extra", "min_length"]
GATES = [each.name for each in fields(GateTraining)]
LATER, MEASURED = {"learnt", "trained", "unpruned"}, {"learnt", "scored", "refitted", "trained"}
DEPENDS = [  # settings -> the recipes whose models or measures depend on them
    (ways("text", ["max_length", "max_tokens", "train_sentences", "vocab_size"]), {*ALL}),
    (ways("train", TRAIN), {"base"}),
    (ways("train", RATES), {"base", *LATER}),
    (ways("model", ["ffn", "norm", "encoder_layers"]), {"base"}),
    (ways("finetune", FINETUNE), LATER),
    (ways("distill", ["weight", "sequences"]), LATER),
    ([replace(PLAIN, freeze_decoder=True)], LATER),
    (ways("gates", [*GATES, "log_alpha", "beta"]), {"learnt"}),
    (ways("gates", ["temperature", "anneal_steps"]), set()),  # of other gates
    (ways("search", SEARCH), MEASURED),
    ([replace(PLAIN, calibration_sentences=7), replace(PLAIN, calibration_targets="own")], {"refitted"}),
]


@pytest.mark.parametrize(("other", "depending"), [(each, row[1]) for row in DEPENDS for each in row[0]])
def test_a_setting_is_part_of_what_depends_on_it_and_of_nothing_else(other, depending):
    assert {name for name, recipe in ALL.items() if key(recipe, other) != key(recipe)} == depending


@pytest.mark.parametrize(
    ("changes", "depending"),
    [
        ({"corpus": OTHER}, {*ALL}),
        ({"precision": "bf16"}, {"base", *LATER}),
        ({"base_hash": "c"}, {*ALL} - {"base"}),
        ({"test": (["a", "a"], ["b", "b"])}, MEASURED),
        ({"sampled": 16_000}, MEASURED),
    ],
    ids=["text", "precision", "base", "test set", "sample of a score"],
)
def test_what_is_no_setting_is_part_of_what_depends_on_it(changes, depending):
    assert {name for name, recipe in ALL.items() if key(recipe, **changes) != key(recipe)} == depending


def test_every_part_of_a_recipe_is_part_of_its_key():
    others = {"choose": "obs", "budget": Units(8), "kinds": ("cross",), "refit": "out+ffn+v", "epochs": 5}
    others["seed"] = 2
    recipes = [replace(CLOSED, **{name: value}) for name, value in others.items()]
    recipes += [CLOSED, SCORED, replace(SCORED, closed_output="mean")]
    assert {each.name for each in fields(Recipe)} == others.keys() | {"closed_output"}
    assert len(set(map(key, recipes))) == len(recipes)


def test_a_plan_depends_on_the_pairs_that_it_reads_and_on_the_threads_that_are_timed():
    calibration, threads = replace(PLAIN, calibration_sentences=7), replace(PLAIN, threads=2)
    for choose in ("plan", "scratch"):
        for budget in (Speed(2.0), Share("params", 0.5)):
            recipe = Recipe(choose, budget, epochs=1)
            assert key(recipe, calibration) != key(recipe)
            assert (key(recipe, threads) != key(recipe)) is isinstance(budget, Speed)
    assert key(Recipe("importance", Units(4)), threads) == key(Recipe("importance", Units(4)))
    assert key(Recipe("importance", Speed(2.0)), threads) != key(Recipe("importance", Speed(2.0)))


@pytest.mark.parametrize("name", [*LEARNED, "scratch"])  # whose shape is that of learned gates
def test_gates_depend_on_every_option_of_their_own(name):
    recipe = Recipe(name, Units(9), epochs=3)
    options = [each.name for each in fields(LEARNED.get(name, LEARNED["l0"]).options)]
    assert {key(recipe, other) == key(recipe) for other in ways("gates", options)} == {False}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_base_is_another_for_another_seed_and_a_recipe_has_its_own(seed):
    other = replace(PLAIN, seed=seed + 7)
    assert key(BASE, other) != key(BASE, replace(PLAIN, seed=seed))
    assert key(SCORED, other) == key(SCORED)


def test_where_things_lie_and_how_a_run_was_found_are_not_part_of_it():
    places = {"name": "n", "runs": "r", "data_dir": "d", "threads": 3, "resume": True, "unique": True}
    places |= {"logger": "wandb", "checkpoint_minutes": 1.5, "checkpoint_steps": 7, "look_sentences": 3}
    places["search"] = replace(PLAIN.search, batch_tokens=4000)  # of a GPU that was full
    others = [{name: value} for name, value in places.items()] + [{"fresh": True}]
    for other in (replace(PLAIN, **each) for each in others):
        assert [key(recipe, other) for recipe in ALL.values()] == [key(recipe) for recipe in ALL.values()]


@pytest.mark.parametrize("part", ["model", "text", "train"])
def test_a_base_depends_on_every_setting_of_its_model_text_and_training(part):
    cache_key = base_fingerprint(PLAIN, CORPUS, "32")
    for each in fields(getattr(PLAIN, part)):
        assert cache_key[part][each.name] == getattr(getattr(PLAIN, part), each.name)


def test_a_run_by_many_processes_is_that_of_one_that_accumulates_the_batches_of_all():
    many = replace(PLAIN, devices=3, num_nodes=2, train=replace(PLAIN.train, accumulate=2))
    one = replace(PLAIN, train=replace(PLAIN.train, accumulate=12))
    for recipe in (BASE, LEARNT):
        assert key(recipe, many) == key(recipe, one) != key(recipe)


@pytest.mark.parametrize(
    ("choose", "budget", "score"),
    [
        ("importance", Units(9), "importance"),
        ("l0", Units(9), None),
        ("plan", Speed(2.0), "obs"),
        ("scratch", Speed(2.0), "obs"),
        ("scratch", Share("macs", 0.5), "obs"),
        ("scratch", Units(9), None),
        (UNPRUNED, Units(), None),
    ],
)
def test_whatever_reads_a_score_depends_on_its_sample(choose, budget, score):
    assert score_of(Recipe(choose, budget, epochs=3)) == score


def test_another_content_of_a_list_or_a_text_is_another_run(tmp_path):
    for budget in (Listed(str(tmp_path / "list.bin")), Pieces((f"{tmp_path}/a.en:{tmp_path}/a.de",))):
        found = []
        for content in ("one", "two", "two"):
            for name in ("list.bin", "a.en", "a.de"):
                (tmp_path / name).write_text(content)
            found.append([list(map(file_digest, files)) for files in files_of(budget, PLAIN)])
        assert found[0] != found[1] == found[2] != []
    for budget in (Listed("50"), Units(9), Speed(2.0, shortlist="50")):
        assert files_of(budget, PLAIN) == []


def test_a_pair_of_files_is_not_two_files_of_source_lines(tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text(f"{name}\n")
    one, other = f"{tmp_path}/a.en", f"{tmp_path}/a.de"
    pair, two = (Recipe("pieces", Pieces(texts)) for texts in ((f"{one}:{other}",), (one, other)))
    assert key(pair) != key(two)


def test_a_folder_of_text_counts_by_the_files_that_are_read_wherever_it_lies(tmp_path, monkeypatch):
    folder = tmp_path / "parts"
    folder.mkdir()
    for split in ("train-00000-of-00002", "train-00001-of-00002", "valid", "test"):
        (folder / f"{split}.tsv").write_text("en\tde\na\tb\n")
    monkeypatch.chdir(tmp_path)

    def keys(*places: str) -> list[dict]:
        return [key(Recipe("pieces", Pieces((place,)))) for place in places]

    one, other = keys("parts", f"{tmp_path}/./parts")
    assert one == other
    (folder / "train-00001-of-00002.tsv").write_text("en\tde\na\tc\n")
    (changed,) = keys("parts")
    assert changed != one
    (folder / "valid.tsv").write_text("en\tde\na\tc\n")
    assert keys("parts") == [changed]
