"""The fingerprint changes with all that a model depends on, and with nothing else."""

from dataclasses import fields, replace

import pytest

from headgates.configs.cli import config_hash
from headgates.configs.methods import METHODS
from headgates.configs.settings import Settings
from headgates.configs.stages import GateTraining
from headgates.data import Corpus
from headgates.data.parallel import ParallelText
from headgates.records.fingerprint import CONTINUED, base_fingerprint, stage_fingerprint

TEXT = ParallelText(["a"], ["b"])
CORPUS = Corpus(name="text", train=TEXT, valid=TEXT, test=TEXT, description="")
TEST = (["a"], ["b"])
OPTIONS = [(method, option.name) for method in METHODS.values() for option in fields(method.options)]
PLACES = {
    "name": "n",
    "runs": "r",
    "data_dir": "d",
    "threads": 3,
    "resume": True,
    "fresh": True,
    "unique": True,
    "logger": "wandb",
}
PLACES |= {"checkpoint_minutes": 1.5, "checkpoint_steps": 7}


def settings_of(method: str) -> Settings:
    return Settings(gate=method, heads=5 if METHODS[method].controlled_by == "heads" else None)


def of(config: Settings, gate: str | None = None, test=TEST) -> str:
    return config_hash(
        stage_fingerprint(config, CORPUS, "32", base_hash="b", gate=gate or config.gate, test=test)
    )


def changed(value):
    """Another value that is as good."""
    return not value if isinstance(value, bool) else value * 1.25


def changed_number(value):
    return type(value)(value * 1.25)


@pytest.mark.parametrize(
    ("method", "option"), OPTIONS, ids=[f"{method.name}-{option}" for method, option in OPTIONS]
)
def test_it_changes_with_every_option_of_a_method(method, option):
    config = settings_of(method.name)
    other = replace(config, gates=replace(config.gates, **{option: changed(getattr(config.gates, option))}))
    assert of(other) != of(config)
    assert of(other, CONTINUED) == of(config, CONTINUED)
    assert base_fingerprint(other, CORPUS, "32") == base_fingerprint(config, CORPUS, "32")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", [each.name for each in fields(GateTraining)])
def test_it_changes_with_how_gates_are_trained(method, setting):
    config = settings_of(method)
    others = {"reconstruct": "out", "choose_epochs": 2}
    other = others[setting] if setting in others else changed_number(getattr(config.gates, setting))
    assert of(replace(config, gates=replace(config.gates, **{setting: other}))) != of(config)


def test_what_the_base_teaches_is_part_of_every_run_on_it_and_so_is_how_it_searches():
    config = Settings()
    ways = ({"weight": 0.5}, {"sequences": 0.5}, {"sequences": 1.0})
    taught = [replace(config, distill=replace(config.distill, **way)) for way in ways]
    greedily = replace(taught[1], search=replace(config.search, beam=1))
    for gate in ("l0", CONTINUED):
        assert len({of(each, gate) for each in (config, *taught, greedily)}) == 5
    assert base_fingerprint(taught[0], CORPUS, "32") == base_fingerprint(config, CORPUS, "32")


def test_the_same_heads_divided_otherwise_among_the_kinds_are_another_run():
    divided = [["enc-self=4", "dec-self=8", "cross=12"], ["enc-self=8", "dec-self=4", "cross=12"], []]
    assert len({of(Settings(gate="subset", heads=24, heads_per_kind=each)) for each in divided}) == 3


@pytest.mark.parametrize("method", METHODS)
def test_it_changes_with_what_steers_the_method_and_with_the_method(method):
    config = settings_of(method)
    steered = replace(config, lam=0.07) if config.heads is None else replace(config, heads=7)
    assert of(steered) != of(config)
    assert of(steered, CONTINUED) == of(config, CONTINUED)
    assert len({of(settings_of(name)) for name in METHODS} | {of(config, CONTINUED)}) == len(METHODS) + 1


@pytest.mark.parametrize("name", PLACES)
def test_where_things_lie_and_how_a_run_was_found_are_not_part_of_it(name):
    config = Settings()
    other = replace(config, **{name: PLACES[name]})
    assert of(other) == of(config)
    assert base_fingerprint(other, CORPUS, "32") == base_fingerprint(config, CORPUS, "32")


@pytest.mark.parametrize("part", ["model", "text", "train"])
def test_a_base_depends_on_every_setting_of_its_model_text_and_training(part):
    config = Settings()
    cache_key = base_fingerprint(config, CORPUS, "32")
    for each in fields(getattr(config, part)):
        assert cache_key[part][each.name] == getattr(getattr(config, part), each.name)
    assert (
        base_fingerprint(replace(config, finetune=replace(config.finetune, epochs=5)), CORPUS, "32")
        == cache_key
    )


def test_the_text_the_seed_the_precision_and_the_devices_are_part_of_both():
    config = Settings()
    other_text = replace(CORPUS, train=ParallelText(["a a"], ["b"]))
    keys = [
        *((each, CORPUS, "32") for each in (config, replace(config, seed=2), replace(config, devices=2))),
        *((config, CORPUS, "bf16"), (config, other_text, "32")),
    ]
    assert len({config_hash(base_fingerprint(*each)) for each in keys}) == 5
    stages = {config_hash(stage_fingerprint(*each, base_hash="b", gate="l0", test=TEST)) for each in keys}
    assert len(stages | {config_hash(stage_fingerprint(*keys[0], base_hash="c", gate="l0", test=TEST))}) == 6


def test_a_run_by_many_processes_is_that_of_one_that_accumulates_the_batches_of_all():
    config = Settings()
    many = replace(config, devices=3, num_nodes=2, train=replace(config.train, accumulate=2))
    one = replace(config, train=replace(config.train, accumulate=12))
    assert base_fingerprint(many, CORPUS, "32") == base_fingerprint(one, CORPUS, "32")
    assert of(many) == of(one) != of(config)


def test_another_test_set_or_search_is_another_run_on_the_same_continued_base():
    config = Settings()
    beam = replace(config, search=replace(config.search, beam=2))
    other = (["a", "a"], ["b", "b"])
    assert len({of(config), of(beam), of(config, test=other)}) == 3
    assert len({of(config, CONTINUED), of(beam, CONTINUED), of(config, CONTINUED, test=other)}) == 1


def samples(config: Settings, pairs: int):
    """What the fingerprint says of the pairs that scores read."""
    corpus = replace(CORPUS, train=ParallelText(["a"] * pairs, ["b"] * pairs))
    cache_key = stage_fingerprint(config, corpus, "32", base_hash="b", gate=config.gate, test=TEST)
    return cache_key["score_samples"]


def test_it_tells_scores_of_a_sample_from_those_of_all_pairs():
    """16,000 pairs are enough for importance: a run on no more has read them all."""
    assert samples(Settings(), 16_000) == {"importance": 0}
    assert samples(Settings(), 16_001) == {"importance": 16_000}
    assert samples(Settings(sentences=5), 16_001) == {"importance": 5}
    assert samples(Settings(systems=["base", "l0", "obs"]), 1001) == {"obs": 1000}
    config = Settings(systems=["base", "l0"])
    assert samples(config, 16_001) == {}
    begun = replace(config, gate="l0-started", heads=3)
    assert samples(begun, 16_001) == {"importance": 16_000}
