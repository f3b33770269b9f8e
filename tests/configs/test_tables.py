"""What every line of the tables of gates, scores and tasks must keep."""

from dataclasses import fields

import pytest
import torch

from headgates.configs.fields import all_settings
from headgates.configs.learned import LEARNED
from headgates.configs.registry import imported
from headgates.configs.settings import Settings
from headgates.configs.stages import GateConfig, GateTraining
from headgates.configs.tasks import TASK_NAMES
from headgates.gates import GATES
from headgates.pruning.choosers import OTHERS, SCORES, how
from headgates.tasks import task_named, task_of
from headgates.tasks.base import Task


@pytest.mark.parametrize("name", LEARNED)
def test_gates_are_there_take_every_option_of_their_own_and_start_open(name):
    learned = LEARNED[name]
    number = {} if learned.by_price else {"target_heads": 3}
    gate = GATES[learned.gate](7, **learned.gate_options(GateConfig()), **number)
    assert number or torch.equal(gate.eval()(), torch.ones(7))
    flags = {setting.name: setting for setting in all_settings(Settings)}
    for option in fields(learned.options):
        assert flags[f"gates.{option.name}"].default == option.default


def test_no_two_kinds_of_gates_have_an_option_of_the_same_name():
    classes = dict.fromkeys(each.options for each in LEARNED.values())  # two may share theirs
    names = [option.name for each in (GateTraining, *classes) for option in fields(each)]
    assert len(set(names)) == len(names) == len(fields(GateConfig))


@pytest.mark.parametrize("name", {**SCORES, **LEARNED, **OTHERS})
def test_whatever_chooses_is_there(name):
    assert callable(imported(SCORES[name].function if name in SCORES else how(name)))


@pytest.mark.parametrize("name", [name for name, score in SCORES.items() if score.family])
def test_a_family_is_a_score_that_is_made_alike(name):
    score = SCORES[name]
    mate = SCORES[score.family]
    assert mate.family is None
    assert (mate.function, mate.takes, mate.sample) == (score.function, score.takes, score.sample)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_task_is_found_by_its_name_and_says_what_is_better(name):
    task = task_named(name)
    assert isinstance(task, Task)
    assert task.metrics
    assert type(task_of({"task": name})) is type(task)


@pytest.mark.parametrize(
    "place", ["headgates.analysis.nowhere:f", "headgates.analysis.scores.importance:nothing", "nothing"]
)
def test_a_line_that_names_nothing_says_so(place):
    with pytest.raises(ValueError, match=r"expected '?module:"):
        imported(place)


def test_a_module_of_the_users_own_that_python_cannot_read_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "half_written.py").write_text("def score(model, batches:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"half_written cannot be imported: SyntaxError: .*line 1"):
        imported("half_written:score")
