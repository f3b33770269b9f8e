"""What a sweep's folder says, and when it is of another sweep."""

import json

import pytest

from headgates.workbench.sweeps.state import Record, SweepState, described
from headgates.workbench.sweeps.sweep_file import read_sweep

SWEEP = "program: fit.py\nmethod: {method}\nparameters:\n  lambda: {{values: [0.1, 0.2]}}\n  seed: {{values: [3, 5]}}\n"
RANDOM, GRID = SWEEP.format(method="random"), SWEEP.format(method="grid")


@pytest.fixture
def opened(tmp_path):
    """opened(text, seed=, count=) -> the state of this sweep file in the folder."""

    def of(text=RANDOM, seed=1, count=7):
        (tmp_path / "own.yaml").write_text(text)
        sweep = read_sweep(tmp_path / "own.yaml")
        return SweepState.open(tmp_path / "sweep", sweep, sweep.draws(seed=seed, count=count), seed=seed)

    return of


def begun(state):
    state.records[1].status = "done"
    state.save()
    return state


def test_the_state_is_read_back_as_it_was_and_holds_the_sweep_file(opened, tmp_path):
    first = begun(opened())
    again = opened()
    assert again.records == first.records
    assert (tmp_path / "sweep/sweep.yaml").read_text() == (tmp_path / "own.yaml").read_text()
    assert not list((tmp_path / "sweep").glob("*.part"))


def test_a_repeated_draw_is_skipped_and_names_the_first(opened):
    state = opened(count=23)
    skipped = state.records_with("skipped")
    assert len(skipped) == 19
    assert all(state.records[record.same_as].parameters == record.parameters for record in skipped)
    assert opened(count=23).records_with("skipped") == skipped


def test_running_trials_wait_again_after_a_crash(opened):
    state = opened()
    state.records[1].status = "running"
    state.records[1].seconds = 3.0
    state.save()
    again = opened()
    assert (again.records[1].status, again.records[1].seconds) == ("waiting", 3.0)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"text": GRID}, "method"),
        ({"text": RANDOM.replace("0.2", "0.3")}, "parameters"),
        ({"text": RANDOM + "command: [python, '${program}', '${args}']\n"}, "command"),
        ({"seed": 2}, "seed 1, not 2"),
    ],
    ids=["method", "parameters", "command", "seed"],
)
def test_another_sweep_in_the_folder_is_refused_by_what_differs(opened, tmp_path, change, differs):
    begun(opened())
    with pytest.raises(ValueError) as error:
        opened(**change)
    assert f"{tmp_path / 'sweep'} holds another sweep ({differs}); give this one a --name of its own" in str(
        error.value
    )
    assert (tmp_path / "sweep/sweep.yaml").read_text() == RANDOM, "the file that the state is of stays"


def test_the_order_of_the_parameters_counts(opened):
    lines = GRID.splitlines(keepends=True)
    begun(opened("".join(lines), count=0))
    with pytest.raises(ValueError, match=r"another sweep \(parameters\)"):
        opened("".join([*lines[:3], lines[4], lines[3]]), count=0)


def test_what_does_not_change_a_trial_may_change(opened):
    begun(opened())
    opened(RANDOM + "run_cap: 3\ndescription: the same\n# a remark\n")
    begun(opened(RANDOM, count=5))
    assert len(opened(count=11).records) == 11


def test_a_sweep_of_which_nothing_was_started_gives_way_to_another(opened):
    opened()
    assert opened(GRID, count=0).records[4].parameters == {"lambda": 0.2, "seed": 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"seed": 1, "trials": 3}',
        '{"seed": "x", "trials": []}',
        '{"seed": 1, "trials": [3]}',
        '{"seed": 1, "trials": [{"numbr": 1}]}',
        '{"seed": 1, "trials": [{"number": "1", "parameters": {}}]}',
        '{"seed": 1, "trials": [{"number": 1, "parameters": []}]}',
        '{"seed": 1, "trials": [{"number": 1, "parameters": {}, "status": "lost"}]}',
        '{"seed": 1, "trials": [{"number": 1, "parameters": {}, "status": ["done"]}]}',
    ],
    ids=lambda text: text[:60],
)
def test_a_broken_state_is_named_with_what_to_do(opened, tmp_path, text):
    begun(opened())
    (tmp_path / "sweep/trials.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"holds no sweep that can continue .*; give this one a --name of its own, or remove"
    ):
        opened()


def test_a_trial_that_is_drawn_differently_now_is_refused(opened, tmp_path):
    begun(opened())
    path = tmp_path / "sweep/trials.json"
    content = json.loads(path.read_text())
    content["trials"][1]["parameters"]["lambda"] = 0.7
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"trial 2 was lambda 0.7, seed \d and is drawn as lambda 0.\d, seed \d now"
    ):
        opened()


def test_parameters_are_said_in_few_words():
    parameters = {"lambda": 0.012345678, "kinds": ["enc-self", "cross"], "seed": 3, "systems": "base,l0"}
    assert (
        described(parameters, ["lambda", "kinds", "seed"]) == "lambda 0.01235, kinds enc-self,cross, seed 3"
    )
    assert described(parameters) == "lambda 0.01235, kinds enc-self,cross, seed 3, systems base,l0"
    assert Record(7, {}).log == "logs/007.log"
