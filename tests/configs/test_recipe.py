"""A recipe says the same as an object, as flags of either command that makes models, and as a file."""

import json
from itertools import product

import pytest

from headgates.commands.fit import FitOptions
from headgates.commands.prune import PruneOptions, words_of
from headgates.configs.cli import ConfigError, read_command, read_given
from headgates.configs.closing import CLOSED_OUTPUTS, REFITS
from headgates.configs.kinds import ALL_KINDS, FFN_KINDS
from headgates.configs.recipe import (
    LAYERS,
    NO_SHORTLIST,
    PIECES,
    SHORTLIST,
    Lambda,
    Layers,
    Listed,
    MaxDrop,
    Pieces,
    Recipe,
    Share,
    Speed,
    Units,
)
from headgates.pruning.choosers import OFFERED

ALL = tuple(ALL_KINDS)
BY_KIND = Units(24, by_kind=(("enc-self", 4), ("dec-self", 8), ("cross", 12)))
RECIPES = [
    Recipe("l0", Lambda(0.03), epochs=3),
    Recipe("importance", Units(24)),
    Recipe("obs", Units(0), ("cross",)),
    Recipe("fisher", Units(neurons=96), tuple(FFN_KINDS)),
    Recipe("subset", Units(24, 96), ALL, epochs=1),
    Recipe("random", BY_KIND),
    Recipe("plan", Share("params", 0.6), ALL, refit="out+ffn+v"),
    Recipe("importance", Share("macs", 0.1 + 0.2), ALL),
    Recipe("plan", Speed(2.5, "int8", 7), ALL, refit="out+ffn+v", epochs=8),
    Recipe("plan", Speed(2.5, "int8", 1), ALL, refit="out+ffn+v", epochs=8),
    Recipe("plan", Speed(2.5, "int8", 7, "50"), ALL, epochs=8),
    Recipe("plan", Speed(2.5, "int8", 7, "0"), ALL, epochs=8),
    Recipe("plan", MaxDrop(0.5, shortlist="lex.50.s2t.bin"), ALL),
    Recipe("uniform", Speed(1.5), ALL, epochs=8),
    Recipe("plan", MaxDrop(0.5, speeds=(1.5, 2.0)), ALL),
    Recipe("l0", MaxDrop(0.0, heads=(24, 12)), epochs=3),
    Recipe("l0", MaxDrop(1.5, prices=(0.01, 0.03)), epochs=3),
    Recipe(LAYERS, Layers(("decoder.0", "encoder.2")), refit="out", epochs=2),
    Recipe(PIECES, Pieces(("a.txt", "b.en:b.de"))),
    Recipe(SHORTLIST, Listed("50")),
    Recipe(SHORTLIST, Listed("lex.50.s2t.bin")),
    Recipe("tests.configs.commands:options_of", Units(5)),
    *(Recipe("importance", Units(24), refit=refit, epochs=5, seed=7) for refit in REFITS),
    *(Recipe("importance", Units(24), closed_output=output, seed=7) for output in CLOSED_OUTPUTS),
]


def recipes_of(*words: str) -> list[Recipe]:
    options = read_command(PruneOptions, ["RUN", *words])
    return options.recipes(options.by, options.seed)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_another_process_is_asked_for_the_same_recipe_and_a_file_gives_it_back(recipe):
    assert recipes_of(*recipe.words()) == [recipe]
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_two_recipes_have_neither_one_title_nor_one_name_of_a_run():
    assert len({recipe.title for recipe in RECIPES}) == len(RECIPES)
    assert len({"-".join(recipe.file_words) for recipe in RECIPES}) == len(RECIPES)


def test_another_process_has_the_settings_of_the_command_and_its_recipe_alone():
    given = "--text.max-tokens 77 --search.beam 3 --set freeze_decoder=true dynamics=2,1 --data-dir null"
    words = f"RUN --by obs,fisher --heads 9,5 --seeds 2 --jobs 3 --seed 4 --name n --fresh {given}"
    options, named = read_given(PruneOptions, [*words.split(), "--runs", "here"])
    recipe = options.recipes(options.by, options.seed)[-1]
    command, *alone = words_of(recipe, options.source, named)
    other, passed = read_given(PruneOptions, alone)
    assert (command, other.source, other.recipes(other.by, other.seed)) == ("prune", "RUN", [recipe])
    for name in ("text.max_tokens", "search.beam", "freeze_decoder", "dynamics", "data_dir", "runs"):
        assert passed[name] == named[name], name
    assert (other.jobs, other.fresh, other.name) == (0, False, None)


# ---------------------------------------------------------------- flags that make recipes

BUDGETS = [
    "--lambda 0.02",
    "--heads 24",
    "--neurons 96 --kinds ffn",
    "--speedup 2",
    "--params 0.5",
    "--macs 0.5",
    "--max-drop 1",
    "--drop-layers encoder.1",
]
DIFFERENT = {  # fit learns gates where nothing else is said, and its default for a speed is no wish for gates
    None: ("--heads", "--neurons", "--max-drop"),
    "l0": ("--speedup", "--params", "--macs"),
}
CHOICES = [None, *OFFERED, "tests.configs.commands:options_of"]


@pytest.mark.parametrize(
    ("flags", "choose"),
    [(flags, by) for flags in BUDGETS for by in CHOICES if not flags.startswith(DIFFERENT.get(by, "?"))],
)
def test_fit_and_prune_make_the_same_of_the_same_flags(flags, choose):
    """--gate of fit and --by of prune: kinds, refit and epochs that are not given, and what is refused."""
    made = []
    for options_class, flag, first in ((FitOptions, "--gate", []), (PruneOptions, "--by", ["RUN"])):
        try:
            options = read_command(
                options_class, [*first, *flags.split(), *([flag, choose] if choose else [])]
            )
        except ConfigError as error:
            made.append(str(error))
        else:
            fitted = isinstance(options, FitOptions)
            made.append(options.own_recipes() if fitted else options.recipes(options.by, options.seed))
    assert made[0] == made[1]


def test_a_plan_without_a_shortlist_and_its_rivals_are_asked_for_in_one_command():
    words = "--by plan,l0,importance,uniform --speedup 2 --shortlist 0"
    found = recipes_of(*words.split())
    assert [recipe.choose for recipe in found] == ["plan", "l0", "importance", "uniform"]
    assert {recipe.budget for recipe in found} == {Speed(2.0, shortlist=NO_SHORTLIST)}


def test_what_is_not_given_suits_the_budget():
    usual = {
        "--lambda 0.02": Recipe("l0", Lambda(0.02), epochs=3),
        "--heads 9": Recipe("importance", Units(9)),
        "--heads 9 --by subset": Recipe("subset", Units(9), epochs=3),
        "--speedup 2": Recipe("plan", Speed(2.0), ALL, refit="out+ffn+v"),
        "--params 0.5 --by importance": Recipe("importance", Share("params", 0.5), ALL, refit="out+ffn+v"),
        "--max-drop 1": Recipe("plan", MaxDrop(1.0), ALL, refit="out+ffn+v"),
        "--speedup 2 --shortlist 050": Recipe("plan", Speed(2.0, shortlist="50"), ALL, refit="out+ffn+v"),
        "--max-drop 1 --heads 9": Recipe("importance", MaxDrop(1.0, heads=(9,))),
        "--max-drop 1 --lambda 0.1,0.03": Recipe("l0", MaxDrop(1.0, prices=(0.03, 0.1)), epochs=3),
        "--drop-layers encoder.1": Recipe(LAYERS, Layers(("encoder.1",))),
    }
    assert {flags: recipes_of(*flags.split()) for flags in usual} == {
        flags: [recipe] for flags, recipe in usual.items()
    }


def test_layers_are_the_same_in_whatever_order_and_spelling():
    (one,) = recipes_of("--drop-layers", "encoder.1,decoder.10,decoder.2")
    (other,) = recipes_of("--drop-layers", "decoder.02,encoder.1,decoder.10")
    assert one == other
    assert one.budget.dropped == ("decoder.2", "decoder.10", "encoder.1")


def test_shares_that_differ_by_less_than_a_percent_are_told_apart():
    titles = {recipe.title for recipe in recipes_of("--params", "0.125,0.12,0.804,0.8")}
    assert len(titles) == 4


def test_every_combination_of_the_values_is_made_seed_by_seed_and_one_model_once():
    words = "--by importance,unpruned --heads 12,24 --epochs 0,2 --seeds 2 --refit none,out"
    found = recipes_of(*words.split())
    pruned = [
        Recipe("importance", Units(heads), refit=refit, epochs=epochs, seed=seed)
        for seed, epochs, heads, refit in product((1, 2), (0, 2), (24, 12), (None, "out"))
    ]
    unpruned = [Recipe("unpruned", Units(), epochs=epochs, seed=seed) for seed in (1, 2) for epochs in (0, 2)]
    assert [recipe for recipe in found if recipe.choose == "importance"] == pruned
    assert [recipe for recipe in found if recipe.choose == "unpruned"] == unpruned


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--lambda 0.1 --heads 9", "--lambda and --heads say in two ways how much stays"),
        ("--max-drop 1 --macs 0.5", "--macs and --max-drop say in two ways"),
        (
            "--max-drop 1 --heads 9 --neurons 16",
            "--max-drop looks for a number of heads: leave --neurons out",
        ),
        ("--max-drop 1 --by importance --batch 1", "--batch is what plans are timed by, and importance"),
        ("--lambda 0.1 --by subset", "--lambda is a price .* subset has none"),
        ("--heads 9 --by plan", "a plan reaches a speed or a size"),
        ("--max-drop 1 --heads 9 --by plan", "give --speedup, or neither"),
        ("--max-drop 1 --speedup 2 --by importance", "give --heads, or neither"),
        ("--max-drop 1 --by l0 --refit out", "l0 closes heads while the weights train"),
        ("--max-drop 1 --heads cross=3", "a number of heads in all"),
        ("--max-drop 1 --by importance --kinds all", "leave neurons out of --kinds"),
        ("--heads 9 --by layers", "--by layers: expected what goes itself"),
        ("--kinds all --heads 9 --neurons 16 --by loss", "loss scores no feed-forward neurons"),
        ("--max-drop 1 --lambda 0.1 --by importance", "--lambda is a price .* importance has none"),
        ("--max-drop 1 --lambda 0.1 --heads 9", "--lambda and --heads say in two ways"),
        ("--heads 9 --by uniform", "give --speedup"),
        ("--heads 9 --by scratch", "scratch trains a model from random weights: give --epochs"),
        ("--params 0.5 --by l0 --refit none --epochs 1", "give --epochs of at least 2"),
        ("--heads 9 --closed-output resample --epochs 1", "give --epochs 0"),
        ("--heads 9 --by importanc", "did you mean 'importance'"),
        ("--heads 9 --by tests.nowhere:f", "tests.nowhere:f' is not there"),
        ("--heads 9 --closed-output mean --refit out", "a refit fits the bias"),
        ("--heads 9 --refit glue", "--refit: expected some of none, out"),
        ("--heads -3", "--heads: expected whole numbers"),
        ("--heads 3,cross=2", "give numbers in all, or a number of each kind"),
        ("--heads cross=2", "expected a number for each of --kinds enc-self,dec-self,cross"),
        ("--kinds all --neurons 16", "give --heads too"),
        ("--neurons 16", "add --kinds ffn, or take --kinds all"),
        ("--kinds ffn --heads 5", "add --kinds heads, or take --kinds all"),
        ("--drop-layers encoder", "expected layers such as encoder.2"),
        ("--trim-vocabulary a.txt --epochs 2", "a step of its own"),
        ("--shortlist 50 --epochs 2", "--shortlist is a step of its own"),
        ("--shortlist 0", "leaves no piece"),
        ("--shortlist 50 --heads 3", "say in two ways"),
        ("--shortlist 50 --params 0.5", "--params and --shortlist say in two ways"),
        ("--shortlist 50 --speedup 2 --by importance", "a part of a plan, and importance makes none"),
        ("--shortlist 50 --max-drop 1 --heads 3", "a part of a plan, and importance makes none"),
        ("--runtime int8 --heads 5", "--runtime is what --speedup times"),
        ("--batch 1 --params 0.5", "--batch is what --speedup times"),
        ("--speedup 1", "--speedup: expected a number above 1"),
    ],
)
def test_what_makes_no_recipe_is_refused_before_anything_is_opened(words, error):
    with pytest.raises(ConfigError, match=error):
        read_command(PruneOptions, ["RUN", *words.split()])


def test_a_base_alone_takes_no_number():
    with pytest.raises(ConfigError, match="--gate none makes a base"):
        read_command(FitOptions, ["--gate", "none", "--heads", "5"])
    of_a_file = ["--config", "toy", "--gate", "none"]
    with pytest.raises(ConfigError, match=r"those that a file has as --heads '\[\]'"):
        read_command(FitOptions, of_a_file)
    assert not read_command(FitOptions, [*of_a_file, "--heads", "[]"]).budgets()


# ---------------------------------------------------------------- files of others

GOOD = Recipe("importance", BY_KIND).to_json()
FOREIGN = {
    "nothing": None,
    "a list": [GOOD],
    "no budget": {"choose": "importance"},
    "no choice": {"budget": GOOD["budget"]},
    "an unknown budget": {"budget": {"name": "wishes"}},
    "a name that is a list": {"budget": {"name": ["units"]}},
    "a budget of another's field": {"budget": {"name": "lambda", "heads": 3}},
    "a budget without its number": {"budget": {"name": "speed"}},
    "a number as text": {"budget": {"name": "units", "heads": "24"}},
    "true for one": {"epochs": True},
    "not a number": {"budget": {"name": "lambda", "price": float("nan")}},
    "too large to be shown": {"budget": {"name": "share", "of": "macs", "share": 10**400}},
    "below zero": {"seed": -1},
    "a share of something": {"budget": {"name": "share", "of": "speedup", "share": 0.5}},
    "kinds that are no kinds": {"kinds": ["self"]},
    "a long list": {"kinds": ["cross"] * 1_000_000},
    "speeds that are text": {"budget": {"name": "max_drop", "points": 1, "speeds": ["2"]}},
    "prices that are text": {"budget": {"name": "max_drop", "points": 1, "prices": ["2"]}},
    "pairs of three": {"budget": {"name": "units", "heads": 3, "by_kind": [["cross", 3, 3]]}},
    "kinds without their sum": {"budget": {"name": "units", "by_kind": [["cross", 3]]}},
    "an unknown refit": {"refit": "glue"},
    "a refit of other outputs": {"refit": "out", "closed_output": "mean"},
}


@pytest.mark.parametrize("changes", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_recipe_is_one_clear_error(changes):
    content = GOOD | changes if isinstance(changes, dict) and "choose" not in changes else changes
    if isinstance(content, dict) and changes == {"budget": GOOD["budget"]}:
        del content["choose"]
    with pytest.raises(ValueError, match="expected a recipe") as error:
        Recipe.from_json(content)
    assert len(str(error.value)) < 200
