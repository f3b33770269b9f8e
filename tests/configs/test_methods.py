"""What every line of the tables of methods and scores must keep; and that a --name stays inside --runs."""

from dataclasses import fields

import pytest
import torch

from headgates.configs.cli import ConfigError, read
from headgates.configs.fields import all_settings
from headgates.configs.methods import METHODS, GateMethod, HardConcreteOptions, method_of
from headgates.configs.registry import imported
from headgates.configs.scores import SCORES
from headgates.configs.settings import Settings
from headgates.configs.stages import GateConfig, GateTraining
from headgates.configs.systems import BASES, check_systems, default_systems, learned_rows
from headgates.configs.tasks import TASKS
from headgates.gates import GATES
from headgates.tasks import task_named, task_of
from headgates.tasks.base import Task


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_by_its_own_name_and_its_gate_exists(name):
    assert METHODS[name].name == name != "none"
    assert METHODS[name].gate in GATES
    assert method_of({"gate": name}) is METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_the_gate_takes_every_option_of_its_method(name):
    method = METHODS[name]
    options = method.gate_options(GateConfig())
    assert options.keys() == {option.name for option in fields(method.options)}
    steered = {"target_heads": 3} if method.controlled_by == "heads" else {}
    gate = GATES[method.gate](7, **options, **steered)
    assert (
        torch.equal(gate.eval()(), torch.ones(7)) or steered
    )  # training starts from open gates unless they are told a number


@pytest.mark.parametrize("name", METHODS)
def test_the_options_of_a_method_are_flags_with_its_defaults(name):
    flags = {setting.name: setting for setting in all_settings(Settings)}
    for option in fields(METHODS[name].options):
        assert flags[f"gates.{option.name}"].default == option.default
        assert flags[f"gates.{option.name}"].about.help


def test_no_two_methods_have_an_option_of_the_same_name():
    classes = dict.fromkeys(method.options for method in METHODS.values())  # two methods may share theirs
    names = [option.name for options in classes for option in fields(options)]
    assert (
        len({*names, *(each.name for each in fields(GateTraining))})
        == len(names) + len(fields(GateTraining))
        == len(fields(GateConfig))
    )


@pytest.mark.parametrize("gate", [*METHODS, "none"])
def test_the_usual_rows_can_be_asked_for(gate):
    usual = default_systems(gate)
    check_systems("--systems", usual, [*BASES, *learned_rows()], "[:trained]")
    assert set(METHODS[gate].rows if gate in METHODS else []) <= set(usual)


def test_a_method_is_controlled_by_a_price_or_a_number_of_heads():
    price = GateMethod("a", gate="l0", options=HardConcreteOptions, controlled_by="lambda", label="")
    number = GateMethod("b", gate="l0", options=HardConcreteOptions, controlled_by="heads", label="")
    assert (price.control_word(Settings(lam=0.07)), price.control_label({"lambda": 0.07})) == (
        "0.07",
        "λ 0.07",
    )
    assert (number.control_word({"heads": 5}), number.control_label({"heads": 5})) == ("5", "5 heads")
    both = {"heads": 5, "neurons": 48}
    assert (number.control_word(both), number.control_label(both)) == ("5-48n", "5 heads, 48 neurons")
    assert number.control_word({"heads": None, "neurons": 48}) == "48n"


def test_heads_without_gates_are_for_the_rows_of_scores():
    assert read(Settings, ["--gate", "scores", "--heads", "5"]).targets == 5
    with pytest.raises(
        ConfigError, match="--gate scores closes heads by scores: name at least one in --systems"
    ):
        read(Settings, ["--gate", "scores", "--heads", "5", "--systems", "base"])


@pytest.mark.parametrize(
    "gate", [name for name, method in METHODS.items() if method.controlled_by == "heads"]
)
def test_a_method_that_is_told_a_number_asks_for_one_and_takes_0(gate):
    with pytest.raises(
        ConfigError, match=f"--gate {gate} keeps a given number of heads open: give --heads N"
    ):
        read(Settings, ["--gate", gate])
    assert read(Settings, ["--gate", gate, "--heads", "0"]).targets == 0


def test_a_price_and_a_number_of_heads_are_not_given_together():
    with pytest.raises(ConfigError, match="--lambda and --heads exclude each other; give one of them"):
        read(Settings, ["--gate", "l0", "--lambda", "0.01", "--heads", "5"])


def test_l0_with_a_number_of_heads_is_the_method_that_aims_at_it():
    config = read(Settings, ["--gate", "l0", "--heads", "5", "--systems", "base,l0,l0-removed,importance"])
    assert (config.gate, config.targets) == ("l0-target", 5)
    assert config.systems == ["base", "l0-target", "l0-target-removed", "importance"]
    assert read(Settings, ["--gate", "l0", "--heads", "5"]).systems == default_systems("l0-target")
    assert METHODS[config.gate].control_label(config) == "5 heads"


def test_numbers_by_kind_add_up_to_the_heads():
    config = read(Settings, ["--gate", "subset", "--heads-per-kind", "enc-self=4,cross=12,dec-self=8"])
    assert (config.heads, config.targets) == (24, {"enc-self": 4, "dec-self": 8, "cross": 12})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--heads", "23"], "adds up to 24, and --heads is 23; leave --heads out"),
        (["--kinds", "enc-self,cross"], "gates need one for each of --kinds enc-self,cross"),
    ],
)
def test_numbers_by_kind_that_do_not_fit_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        read(Settings, ["--gate", "subset", "--heads-per-kind", "enc-self=4,dec-self=8,cross=12", *words])


def test_heads_and_neurons_have_a_number_each():
    config = read(Settings, ["--gate", "l0", "--kinds", "all", "--heads", "5", "--neurons", "48"])
    assert (config.gate, config.targets) == ("l0-target", {"heads": 5, "ffn": 48})
    assert config.kinds == ["enc-self", "dec-self", "cross", "enc-ffn", "dec-ffn"]
    config = read(Settings, ["--gate", "l0", "--kinds", "ffn", "--neurons", "0"])
    assert (config.gate, config.heads, config.targets) == ("l0-target", None, {"ffn": 0})
    words = ["--heads-per-kind", "cross=3", "--kinds", "cross,enc-ffn", "--neurons", "16", "--gate", "scores"]
    assert read(Settings, words).targets == {"cross": 3, "ffn": 16}
    assert read(Settings, ["--gate", "l0", "--kinds", "all", "--lambda", "0.1"]).targets is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds", "all", "--heads", "5"], "each with a number of its own: give --neurons too"),
        (["--kinds", "all", "--neurons", "16"], "each with a number of its own: give --heads too"),
        (["--neurons", "16"], "--neurons 16: .* add --kinds ffn, or take --kinds all"),
        (["--kinds", "ffn", "--heads", "5"], "--heads 5: .* add --kinds heads, or take --kinds all"),
        (
            ["--kinds", "ffn", "--lambda", "0.1", "--neurons", "16"],
            "--lambda and --neurons exclude each other",
        ),
        (["--kinds", "ffn", "--curve", "9,4"], "leave --kinds ffn and --neurons out"),
        (
            ["--kinds", "ffn", "--neurons", "16", "--systems", "base,lrp"],
            "lrp scores no feed-forward neurons",
        ),
        (["--kinds", "ffn", "--gate", "none", "--neurons", "16"], "--gate none makes a base"),
        (["--kinds", "ffn", "--gate", "scores"], "or --neurons N of feed-forward layers"),
        (["--kinds", "fnn", "--neurons", "16"], "did you mean 'ffn'"),
    ],
)
def test_numbers_of_neurons_that_cannot_be_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        read(Settings, ["--gate", "l0", *words])


def test_a_row_from_scratch_needs_a_translation_model():
    with pytest.raises(ConfigError, match="--systems l0-scratch trains a translation model anew"):
        read(Settings, ["--systems", "base,l0-scratch", "--task", "classify"])


def test_a_method_that_this_version_lacks_is_refused_and_no_gates_are_none():
    assert method_of({}) is None
    with pytest.raises(ValueError, match="'magic', which this version does not have; it has l0"):
        method_of({"gate": "magic"})


# ---------------------------------------------------------------- scores and tasks


@pytest.mark.parametrize("name", SCORES)
def test_the_function_of_a_score_is_there(name):
    assert callable(imported(SCORES[name].function))


@pytest.mark.parametrize("name", SCORES)
def test_a_family_is_a_score_that_is_made_alike(name):
    score = SCORES[name]
    if score.family in SCORES:
        assert SCORES[score.family].family is None
    for other, mate in SCORES.items():
        if score.family is not None and score.family in (other, mate.family):
            assert (mate.function, mate.takes, mate.sample) == (score.function, score.takes, score.sample)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_found_by_its_name_and_says_what_is_better(name):
    task = task_named(name)
    assert isinstance(task, Task)
    assert task.metrics
    assert type(task_of({"task": name})) is type(task)


@pytest.mark.parametrize(
    "place", ["headgates.analysis.nowhere:f", "headgates.analysis.scores.importance:nothing", "nothing"]
)
def test_a_line_that_names_nothing_says_so(place):
    with pytest.raises(ValueError, match=r"is not there .*expected 'module:name'"):
        imported(place)


# ---------------------------------------------------------------- --name


@pytest.mark.parametrize("name", ["..", "a/b", "..\\x", ""])
def test_a_name_that_leaves_the_folder_of_runs_is_refused_in_one_line(name):
    with pytest.raises(ConfigError, match=r"--name: expected a plain name, without separators, got") as error:
        read(Settings, ["--name", name])
    assert "\n" not in str(error.value)
    assert Settings(name="toy..en -l0-0.01").name == "toy..en -l0-0.01"


def test_a_flag_beats_the_other_way_to_say_the_same_in_a_file(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("gate: l0\nheads: 24\n")
    price = read(Settings, ["--config", str(file), "--lambda", "0.03"])
    assert (price.gate, price.heads, price.lam) == ("l0", None, 0.03)
    number = read(Settings, ["--config", str(file), "--heads", "18"])
    assert (number.gate, number.heads) == ("l0-target", 18)
    file.write_text("gate: l0\nlambda: 0.5\n")
    number = read(Settings, ["--config", str(file), "--heads", "18"])
    assert (number.gate, number.heads, number.lam) == ("l0-target", 18, Settings().lam)
