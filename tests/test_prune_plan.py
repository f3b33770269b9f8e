"""Plans for a speed or a size as their user meets them in prune.py and fit.py: what they give, keep and
refuse."""

import copy

import pytest
import torch

from headgates.commands import compare, fit, prune
from headgates.gates import ALL_KINDS, find_sites
from headgates.pruning import runtime_cost
from headgates.pruning.planned import Plans, parameters
from headgates.pruning.runtime_cost import RuntimeCost
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from headgates.records.table import read_table
from tests.worlds.runs import well

FEW = ["--set", "valid_sentences=19", "--set", "calibration_sentences=41", "--test-sentences", "17"]
TORCH = ["--runtime", "torch", "--set", "batch=7", "--threads", "1"]
pytestmark = pytest.mark.usefixtures("as_if_learned")


@pytest.fixture
def prune_here(called):
    return called(prune)


@pytest.fixture
def once(monkeypatch):
    """A timed pass is made once, and parameters stand for the time of a model: what is tested is no time."""
    monkeypatch.setattr(RuntimeCost, "__call__", lambda _, model: parameters(model) / 1000)
    monkeypatch.setattr("headgates.pruning.runtime_cost.ROUNDS", 1)
    monkeypatch.setattr("headgates.pruning.runtime_cost.FREE_ROUNDS", 1)
    monkeypatch.setattr("headgates.pruning.runtime_cost.TIMED", 5)
    monkeypatch.setattr("headgates.pruning.runtime_cost.SECONDS", 0.0)
    monkeypatch.setattr("headgates.pruning.runtime_cost.SHORTEST", 0.0)


def test_a_plan_for_parameters_makes_a_model_of_that_size_that_is_saved_and_translates(
    base, prune_here, once
):
    out = well(prune_here(base.path, *FEW, *TORCH[2:], "--params", "0.8", "--save", "small"))
    smaller, whole = open_source(base.path.parent / "small"), open_source(base.path)
    size, before = (sum(p.numel() for p in each.model.parameters()) for each in (smaller, whole))
    assert 0.7 * before <= size <= 0.8 * before
    (row,) = read_table(base, "speed/planned.csv")
    assert (row["budget"], row["parameters"]) == ("params", size)
    assert row["predicted"] == pytest.approx(before / size, rel=0.01)
    assert "% of the parameters) at" in out  # no speed was predicted
    assert len(smaller.translator.translate(["a dog", "the cat"])) == 2
    pruned = smaller.folder.read_json("result.json")["pruned"]
    assert pruned["order"] == "plan"
    left = {site.name: site.heads for site in find_sites(smaller.model, ALL_KINDS)}
    assert sum(left.values()) < sum(site.heads for site in find_sites(whole.model, ALL_KINDS))


def test_a_model_is_compared_with_the_base_while_the_bases_heads_are_closed_in_place(
    base, prune_here, once, monkeypatch
):
    compared, seen = runtime_cost.compared, []

    def watched(translator, this, whole, *rest):
        seen.append({name: each.clone() for name, each in whole.state_dict().items()})
        return compared(translator, this, whole, *rest)

    monkeypatch.setattr(runtime_cost, "compared", watched)
    well(prune_here(base.path, *FEW, *TORCH, "--params", "0.8"))
    whole = open_source(base.path).model.state_dict()
    assert seen
    for weights in seen:
        torch.testing.assert_close(weights, whole, rtol=0, atol=0)


def test_both_models_are_opened_anew_as_often_where_a_speed_is_measured(base, monkeypatch):
    translator, opened, models = open_source(base.path).translator, runtime_cost.opened, []

    def counted(translator, model, *rest):
        models.append(model)
        return opened(translator, model, *rest)

    monkeypatch.setattr(runtime_cost, "opened", counted)
    lines = ["a dog", "the cat"]
    text = runtime_cost.timed_text(translator, lines, batch=2, beam=1, runtime="torch", threads=1)
    with RuntimeCost(translator, text, "torch", threads=1) as cost:
        both = copy.deepcopy(translator.model), cost.copied
        for measure, times in (
            (lambda: cost(both[0]), runtime_cost.OPENINGS),
            (lambda: cost.compared(both[0], lines, 2), runtime_cost.FREE_OPENINGS),
        ):
            models.clear()
            measure()
            assert [models.count(model) for model in both] == [times, times]


def test_a_plan_for_speeds_keeps_its_tables_and_draws_quality_against_speed(base, prune_here, once):
    flags = [*FEW, *TORCH, "--speedup", "1.05,1.1"]
    out = well(prune_here(base.path, *flags))
    assert "x as fast (predicted" in out
    rows = read_table(base, "speed/planned.csv")
    assert [row["asked"] for row in rows] == [1.05, 1.1]
    assert all((base / f"speed/planned.{end}").is_file() for end in ("png", "svg", "json"))
    table = base.read_json("speed/costs-torch-b7-k1-t1.json")
    assert {"device", "weights"} <= table["cache_key"].keys()
    out = well(prune_here(base.path, *flags))
    assert "timing layers" not in out  # the second command finds its tables


def test_a_plan_for_multiply_adds_without_training_on_heads_alone(base, prune_here, once):
    well(prune_here(base.path, *FEW, *TORCH[2:], "--macs", "0.95", "--kinds", "heads"))
    (row,) = RunFolder(base.path).read_json("speed/planned.json")["rows"][1:]
    shape = row["speed"]["shape"]
    assert not shape["dropped"]
    assert all(shape["open"][site] == n for site, n in shape["of"].items() if site.endswith("ffn"))


def test_a_plan_of_other_kinds_makes_its_tables_again_and_closes_these_alone(base, prune_here, once):
    assert prune_here(base.path, *FEW, *TORCH[2:], "--macs", "0.95")[0] == 0
    flags = ["--speedup", "1.02", "--kinds", "ffn", "--runtime", "ct2", "--set", "batch=7", "--threads", "1"]
    out = well(prune_here(base.path, *FEW, *flags))
    assert "levels-all-s1.json: of another machine, or other settings or weights; made again" in out
    shape = base.read_json("speed/planned.json")["rows"][1]["speed"]["shape"]
    assert all(shape["open"][site] == n for site, n in shape["of"].items() if not site.endswith("ffn"))
    assert shape["open"] != shape["of"]


def test_the_fastest_model_is_looked_for_among_the_speeds_that_can_be_reached(
    base, prune_here, once, monkeypatch
):
    monkeypatch.setattr("headgates.configs.prune.SPEEDS", (1.02, 1.05, 1.1, 1000.0))
    monkeypatch.setattr(Plans, "acceptable", lambda _, ask, limit: ask.planned["asked"] < 1.1)
    well(prune_here(base.path, *FEW, *TORCH, "--max-drop", "0.3"))
    (row,) = read_table(base, "speed/planned.csv")
    assert row["asked"] == 1.05
    monkeypatch.setattr(Plans, "acceptable", lambda *_: False)
    code, _, error = prune_here(base.path, *FEW, *TORCH, "--max-drop", "0.3", "--fresh")
    assert code != 0
    assert "even 1.02 times as fast loses more on validation" in error
    monkeypatch.setattr("headgates.configs.prune.SPEEDS", (1000.0,))
    code, _, error = prune_here(base.path, *FEW, *TORCH, "--max-drop", "0.3")
    assert code != 0
    assert "no shape costs" in error  # no model was made that could lose more


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--speedup", "2", "--params", "0.5"], "two budgets"),
        (["--speedup", "1000", *TORCH], "no shape costs"),
        (["--speedup", "0.9"], "above 1"),
        (["--params", "0.5", "--heads", "3"], "leave --heads out"),
        (["--params", "0.5", "--ablation", "mean"], "leave --ablation mean out"),
        (["--params", "0.5", "--step", "0.2"], "--params plans by itself what to close; leave --step out"),
        (["--runtime", "int8"], "give --speedup too"),
        (["--max-drop", "0.3", "--params", "0.5"], "leave --params out"),
        (["--params", "0.9,0.8", "--save", "two"], "one budget"),
    ],
)
def test_a_budget_that_cannot_be_is_one_line_that_says_why(base, prune_here, once, flags, said):
    code, _, error = prune_here(base.path, *FEW, *flags)
    assert code != 0
    assert said in error
    assert "Traceback" not in error


def test_fit_trains_on_what_a_plan_leaves_and_measures_its_speed_twice(base, called, once, tmp_path):
    others = tmp_path / "others"
    flags = ["--base", base.path, "--runs", others, "--speedup", "1.02", *TORCH[:2], "--threads", "1"]
    few = ["--systems", "base,plan,plan:trained", "--test-sentences", "17", "--finetune.epochs", "1"]
    out = well(called(fit)(*flags, *few))
    run = RunFolder(others / "toy-en-de-plan-1.02x-s1")
    whole, planned, after = run.rows()
    assert (planned.system, after.system, run.own_system()) == ("plan", "plan:trained", "plan:trained")
    assert planned.parameters == after.parameters < whole.parameters
    assert {"predicted", "measured", "shape"} <= after.others["speed"].keys()
    assert planned.stage is None
    assert len(after.stage["losses"]) == 1
    smaller = open_source(run.path)
    assert sum(p.numel() for p in smaller.model.parameters()) == after.parameters
    # its base lies in another folder of runs: it is opened, and the page draws the shape all the same
    assert '"label":"speedup 1.02, planned, refitted' in (run / "report.html").read_text(encoding="utf-8")
    assert sum(p.numel() for p in open_source(run.path, "base").model.parameters()) == whole.parameters
    assert "planned, refitted, trained as long" in out
    assert out.count("as fast (predicted") == 1
    assert "as fast as unpruned" not in out  # of one pass each, beside the speed that was measured in turns
    assert "as fast (predicted" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--speedup", "1.5", "--heads", "3"], "leave --heads out"),
        (["--speedup", "1.5", "--gate", "subset"], "leave --gate subset out"),
        (["--gate", "plan"], "give --speedup too"),
        (["--runtime", "int8"], "give --speedup too"),
        (["--speedup", "1.5", "--task", "classify"], "not for --task classify"),
    ],
)
def test_fit_refuses_a_speed_beside_what_a_plan_decides(called, flags, said):
    code, _, error = called(fit)(*flags)
    assert code != 0
    assert said in error
    assert "Traceback" not in error


def test_fit_makes_the_fair_rivals_of_a_plan_and_measures_each_by_every_runtime(base, called, once, tmp_path):
    flags = ["--base", base.path, "--runs", tmp_path, "--speedup", "1.05", *TORCH[:2], "--threads", "1"]
    few = ["--test-sentences", "17", "--finetune.epochs", "1", "--set", "gates.choose_epochs=1"]
    rows = ["plan-learned", "plan-scratch", "uniform"]
    well(called(fit)(*flags, *few, "--systems", ",".join(["base", *rows])))
    run = RunFolder(tmp_path / "toy-en-de-plan-1.05x-s1")
    whole, *made = run.rows()
    assert [row.system for row in made] == rows
    assert all(row.parameters < whole.parameters for row in made)
    assert [row.stage is None for row in made] == [True, False, False]
    speeds = [row.others["speed"] for row in made]
    assert all({"torch", "ct2", "int8"} == {*each["runtimes"]} for each in speeds)
    by_own_search = [each["runtimes"]["torch"]["bleu"] for each in speeds]
    assert by_own_search == pytest.approx([row.main.value for row in made])


def test_compare_asks_methods_for_speeds_and_shows_each_runtime(base, runs, called, once):
    words = [base.path, "--runs", runs, "--speedups", "1.05", "--runtime", "torch", "--finetune", "0"]
    out = well(called(compare)(*words, "--methods", "plan-heads,plan-importance", "--threads", 1))
    assert "At 1.05 times the speed without training" in out
    assert "The unpruned model by CTranslate2 int8" in out
    rows = read_table(RunFolder(runs / f"compare-{base.path.name}"), "compare.csv")
    assert {(row["method"], row["speedup"]) for row in rows} == {
        ("base", None),
        ("plan-heads", 1.05),
        ("plan-importance", 1.05),
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--speedups", "2", "--heads", "3"], "leave --heads out"),
        (["--speedups", "2", "--methods", "plam"], "did you mean 'plan'"),
        (["--speedups", "2", "--methods", "uniform", "--finetune", "0"], "would have no point"),
        (["--runtime", "int8"], "give --speedups too"),
    ],
)
def test_compare_refuses_a_speed_beside_what_a_method_decides(base, called, flags, said):
    code, _, error = called(compare)(base.path, *flags)
    assert code != 0
    assert said in error
    assert "Traceback" not in error
