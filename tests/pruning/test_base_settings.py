"""What is made of a base has the base's settings, and those that the command line gives."""

from dataclasses import replace

import pytest

from headgates.configs.cli import flat, from_dict, to_yaml
from headgates.configs.fields import all_settings, to_dict
from headgates.configs.settings import OF_THE_BASE, OF_THE_COMMAND, Settings
from headgates.pruning.base import settings_of
from headgates.records.folder import RunFolder

PLAIN = flat(to_dict(Settings()))
FIXED = {name for name in PLAIN if name.split(".")[0] in OF_THE_BASE} | {"text.vocab_size", "text.joint"}
FREE = PLAIN.keys() - FIXED - {*OF_THE_COMMAND}
CHOSEN = {  # where a value that is merely another makes no settings
    "model.heads": 7,
    "model.d_model": 56,
    "model.embeddings": "tied-decoder",
    "dynamics": [3, 2],
    "gates.zeta": 1.2,
    "finetune.dropout": 0.125,
    "strategy": "ddp",
    "metrics": ["module:function"],
    "task": "translation",
    "encoder": None,
}


def another(name: str, value: object, choices: tuple[str, ...]) -> object:
    """A value that is not the default of a setting."""
    if name in CHOSEN:
        return CHOSEN[name]
    if choices:
        return next(choice for choice in choices if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value * 0.75 or 0.5
    return value + 1 if isinstance(value, int) else "other"


VALUES = {each.name: another(each.name, each.default, each.choices) for each in all_settings(Settings)}
THEIRS = from_dict(Settings, VALUES | {"resume": False})


@pytest.fixture
def base(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.write_text("config.yaml", to_yaml(THEIRS, run_hash="a" * 12))
    return folder


def test_every_setting_but_those_of_the_command_is_the_bases(base):
    assert {name for name in FREE if VALUES[name] == PLAIN[name]} == set(), "or nothing is seen"
    settings, changed = settings_of(base, {})
    of_the_command = {name: PLAIN[name] for name in OF_THE_COMMAND if name != "data_dir"}
    as_many = {"train.accumulate": THEIRS.train.accumulate * THEIRS.ranks}  # batches a step, by one process
    assert flat(to_dict(settings)) == flat(to_dict(THEIRS)) | of_the_command | as_many
    assert changed == []


def test_a_step_has_as_many_batches_as_the_bases_or_it_is_said(base):
    batches = THEIRS.train.accumulate * THEIRS.ranks
    settings, changed = settings_of(base, {"devices": batches})
    assert (settings.train.accumulate, changed) == (1, [])
    settings, changed = settings_of(base, {"devices": 2 * batches})
    assert (settings.train.accumulate, changed) == (
        1,
        [f"{2 * batches} batches a step (the base: {batches})"],
    )


def test_a_setting_that_is_given_is_the_only_one_that_changes_and_is_said(base):
    usual = flat(to_dict(settings_of(base, {})[0]))
    for name in sorted(FREE):
        settings, said = settings_of(base, {name: PLAIN[name]})
        assert flat(to_dict(settings)) == usual | {name: PLAIN[name]}
        assert said == [f"{name} {PLAIN[name]} (the base: {usual[name]})"]


def test_dropout_that_only_the_model_has_is_named_as_what_training_had_before(tmp_path):
    folder = RunFolder(tmp_path)
    own = flat(to_dict(THEIRS)) | {"finetune.dropout": None, "model.dropout": 0.25}
    settings = from_dict(Settings, own)
    folder.write_text("config.yaml", to_yaml(settings, run_hash="a" * 12))
    assert settings_of(folder, {"finetune.dropout": 0.1})[1] == [
        "finetune.dropout 0.1 (the base: model.dropout, 0.25)"
    ]


def test_a_setting_of_the_command_is_taken_and_not_said(base):
    settings, changed = settings_of(base, {"threads": 3, "runs": "here", "name": "mine"})
    assert (settings.threads, settings.runs, settings.name, changed) == (3, "here", "mine", [])


def test_what_is_the_bases_alone_is_refused_unless_it_is_what_the_base_has(base):
    for name in sorted(FIXED):
        assert settings_of(base, {name: VALUES[name]})[1] == []
        flag = f"--{name.replace('_', '-')}"
        with pytest.raises(ValueError, match=rf"{flag} .* contradicts .*, which has .*; leave {flag} out"):
            settings_of(base, {name: "another"})


def test_a_length_that_the_bases_positions_do_not_hold_is_refused(base):
    text, model = replace(THEIRS.text, max_length=36), replace(THEIRS.model, max_positions=37)
    base.write_text("config.yaml", to_yaml(replace(THEIRS, text=text, model=model)))
    assert settings_of(base, {"text.max_length": 5})[0].text.max_length == 5
    with pytest.raises(ValueError, match=r"--text\.max-length: expected less than model\.max_positions 37"):
        settings_of(base, {"text.max_length": 90})
