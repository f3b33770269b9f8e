"""make(): which parts each recipe keeps, what becomes of the weights around them, and what a row says."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headgates.configs.recipe import NO_SHORTLIST, Lambda, Layers, MaxDrop, Recipe, Share, Speed, Units
from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, Subnet, find_sites
from headgates.lab.lab import Lab, Run
from headgates.lab.tracker import Tracker
from headgates.planning.cost_table import CostTable
from headgates.planning.planner import Plan
from headgates.pruning import planning
from headgates.pruning.closing import Calibration, closed_heads
from headgates.pruning.make import Row, make
from headgates.pruning.planning import Planning
from headgates.records.folder import RunFolder
from headgates.records.source import Source
from tests.worlds.made_runs import BASE, by_size, kept, lab_on, logits, made_on, masked_logits, opened, size

NINE = Units(heads=9)
OWN = "headgates.analysis.scores.weight_norm:weight_norm"
TOO_FAST = 2.2  # by parameters, for the layers alone


@pytest.fixture(scope="module")
def shared(shared_runs) -> Iterator[tuple[Lab, RunFolder]]:
    lab, base = lab_on(shared_runs)
    yield lab, base
    lab.close()


@pytest.fixture
def made(shared) -> Callable[..., Row]:
    """made(Recipe's arguments) -> its row."""
    return lambda *words, **fields: make(*shared, Recipe(*words, **fields))


def close(left: list[torch.Tensor], right: list[torch.Tensor], atol: float = 1e-4) -> bool:
    return all(torch.allclose(*pair, atol=atol) for pair in zip(left, right, strict=True))


# ---------------------------------------------------------------- which heads and neurons stay


def stored(base: RunFolder, family: str) -> dict[str, np.ndarray]:
    files = Path(base / "scores").glob(f"{family}*.json")
    (file,) = (
        file for file in files if not {"ffn", "all", "outputs"} & {*file.stem.split("-")}
    )  # scores of heads alone
    sites = json.loads(file.read_text())["heads"]
    return {name: np.array(row) for name, row in sites.items() if name.split(".")[2] in KINDS}


@pytest.mark.parametrize("score", ["loss", "ablation", OWN])  # others: tests/test_same_answers.py
def test_the_heads_that_stay_have_the_highest_stored_scores(made, shared, score):
    row = made(score, NINE)
    scores = stored(shared[1], score.replace(":", "."))
    heads = [(value, name, head) for name, each in scores.items() for head, value in enumerate(each)]
    highest = sorted(heads, key=lambda head: head[0])[-9:]
    assert sorted((name, head) for _, name, head in highest) == sorted(
        (name, head) for name, each in kept(row).items() if name in scores for head in each
    )
    assert (row.result.heads_open, row.result.heads_total) == (9, 16)


def test_a_number_of_neurons_that_is_no_multiple_is_said_to_be_another(made, capsys):
    row = made("importance", Units(neurons=17), FFN_KINDS)
    assert row.result.neurons_open == 32
    assert "32 neurons stay, and not 17" in capsys.readouterr().out


def test_neurons_close_in_whole_blocks_and_the_highest_of_each_layer_stay(made, shared):
    row = made("importance", Units(neurons=96), FFN_KINDS)
    (file,) = Path(shared[1] / "scores").glob("importance-ffn.json")
    scores = json.loads(file.read_text())["heads"]
    layers = {name: each for name, each in kept(row).items() if name.endswith("ffn")}
    for name, each in layers.items():
        order = np.argsort(np.array(scores[name]), kind="stable")
        assert sorted(order[len(order) - len(each) :].tolist()) == each
    assert sum(map(len, layers.values())) == 96
    assert {len(each) % 16 for each in layers.values()} == {0}
    assert row.result.heads_open == 16


def test_each_kind_keeps_the_number_that_it_is_given(made):
    row = made("importance", Units(9, by_kind=(("enc-self", 4), ("dec-self", 1), ("cross", 4))))
    assert row.result.heads_by_kind == {"enc-self": 4, "dec-self": 1, "cross": 4}


def test_no_single_exchange_of_heads_lowers_the_loss_that_swaps_were_made_on(made, shared):
    base, row = opened(shared[1]), made("loss-swap", Units(heads=14))
    batches = list(base.train_batches(200, 1))

    def loss(closed: HeadMap) -> float:
        with torch.no_grad(), Subnet.of(base.model).without(closed).closed(base.model):
            return sum(float(base.task.loss(base.model, batch)) for batch in batches)

    closed = ~Subnet.from_json(row.result.subnet).units.select(KINDS)
    flat, least = closed.flat(), loss(closed)
    for one in flat.nonzero().flatten().tolist():
        for other in (~flat).nonzero().flatten().tolist():
            swapped = flat.clone()
            swapped[one], swapped[other] = False, True
            assert loss(closed.like(swapped)) >= least - 1e-3


def test_scores_and_refits_read_the_training_pairs_of_the_base_and_no_others(made, shared, monkeypatch):
    """600 of them, as the base's text.train_sentences says; not all 16,000 of the toy."""
    base = opened(shared[1])
    own, read = set(base.corpus.train.sources[:600]), []
    usual = type(base).data

    def noted(self, *given, **options):
        read.append(usual(self, *given, **options))
        return read[-1]

    monkeypatch.setattr(type(base), "data", noted)
    made("obs", Units(heads=5), refit="out+ffn+v")
    sources = [data.corpus.train.sources[number] for data in read for number in data.split("train").numbers]
    assert len(sources) >= 97
    assert set(sources) <= own


# ---------------------------------------------------------------- what becomes of the weights


SMALLER = {
    "heads": ("importance", NINE),
    "neurons": ("importance", Units(neurons=96), FFN_KINDS),
    "both": ("importance", Units(9, 96), ALL_KINDS),
    "no head at all": ("importance", Units(0)),
}


@pytest.mark.parametrize("name", SMALLER)
def test_a_removed_model_says_what_the_base_says_with_these_units_masked(made, shared, name):
    row = made(*SMALLER[name])
    smaller, base = opened(row.run), opened(shared[1])
    assert close(logits(smaller, base), masked_logits(shared[1], row))
    assert row.result.parameters == size(smaller.model) < size(base.model)
    assert {site.name: site.heads for site in find_sites(smaller.model, ALL_KINDS)} == {
        site: len(each) for site, each in kept(row).items()
    }
    outputs = smaller.task.outputs(smaller.predictor, smaller.lines("test", 23)[0])
    assert row.run.outputs("pruned") == outputs
    assert row.scored.main == pytest.approx(row.result.main.value)


def test_the_loss_of_a_row_is_that_of_the_validation_text_per_token(made, shared):
    row, base = made(*SMALLER["heads"]), opened(shared[1])
    total, tokens = 0.0, 0
    for batch, said in zip(base.data().batches("valid", 4000), masked_logits(shared[1], row), strict=True):
        real = batch.target_out != base.model.target_specials.padding
        total -= float(said.log_softmax(-1).gather(-1, batch.target_out[..., None])[..., 0][real].sum())
        tokens += int(real.sum())
    assert row.result.loss == pytest.approx(total / tokens, abs=1e-4)


def test_a_dropped_layer_is_gone_and_the_rest_is_as_it_was(made, shared):
    row, base = made("layers", Layers(("encoder.1",))), opened(shared[1])
    del base.model.encoder.layers[1]
    assert close(logits(opened(row.run), opened(shared[1])), logits(base))
    assert row.result.layers_left == {"encoder": [True, False], "decoder": [True]}
    with pytest.raises(ValueError, match="no encoder layer 2"):
        made("layers", Layers(("encoder.2",)))


def test_a_refit_changes_the_weights_that_its_name_says_and_comes_nearer_to_the_base(made, shared):
    plain, base = made("importance", NINE), opened(shared[1])
    row = made("importance", NINE, refit="out+ffn+v")
    assert kept(row) == kept(plain)
    ours, theirs = (opened(each.run).model.state_dict() for each in (row, plain))
    changed = {name.rpartition(".")[0] for name in ours if not torch.equal(ours[name], theirs[name])}
    assert {name.rpartition(".")[2] for name in changed} == {"out_proj", "outer", "v_proj"}
    whole = logits(base)
    far = [
        sum(float((a - b).square().sum()) for a, b in zip(logits(opened(each.run), base), whole, strict=True))
        for each in (row, plain)
    ]
    assert far[0] < far[1]
    assert row.result.compute["refit"] > 0


def test_a_closed_head_outputs_its_mean_over_the_calibration_text(made, shared):
    row, base = made("importance", NINE, closed_output="mean"), opened(shared[1])
    closed = ~Subnet.from_json(row.result.subnet).units.select(KINDS)
    with closed_heads(base.model, closed, "mean", Calibration(base, 97)):
        expected = logits(base)
    assert close(logits(opened(row.run), base), expected)


def test_heads_that_are_sampled_anew_stay_in_the_model_and_save_no_time(made, shared):
    row = made("importance", NINE, closed_output="resample")
    assert (row.result.heads_open, row.result.seconds) == (9, None)
    assert row.result.parameters == made("importance", NINE).result.parameters
    assert not (row.run / "best.pt").exists()
    with pytest.raises(ValueError, match="leaves no model to go on with: give its base"):
        shared[0].text.load(row.run)


# ---------------------------------------------------------------- training


def test_of_a_sweep_s_agent_are_the_runs_of_the_recipe_alone(tiny):
    lab, base = lab_on(tiny)
    lab.asked, found = Recipe("random", NINE), {}

    class Opened(Tracker):
        def open(self, folder, kind, base, *, asked):
            found[folder.path.name] = asked

    lab.tracker = Opened()
    for recipe in (lab.asked, Recipe("importance", NINE)):  # a rival of the first
        make(lab, base, recipe)
    assert found == {"toy-en-de-random-9-s1": True, "toy-en-de-importance-9-s1": False}


def test_a_model_trains_on_from_what_was_removed_and_stands_beside_the_base_trained_as_long(tiny, stages):
    lab, base = lab_on(tiny)
    rows = [make(lab, base, Recipe(score, NINE, epochs=1)) for score in ("importance", "random")]
    assert stages == ["base-continued", "training", "training"]
    for row in rows:
        bases = row.run.rows()
        assert [each.system for each in bases] == ["base", "base-continued", "pruned"]
        assert row.result.stage["epochs"] == bases[1].stage["epochs"] == 1
        assert row.result.stage["steps"] == bases[1].stage["steps"]
        assert row.result.reference == min(bases[:2], key=lambda each: min(each.stage["losses"])).system
        model = opened(row.run).model
        assert {site.name: site.heads for site in find_sites(model)} == {
            name: len(each) for name, each in kept(row).items() if name.split(".")[2] in KINDS
        }
        plain = make(lab, base, Recipe(row.recipe.choose, NINE))
        assert kept(plain) == kept(row)
        assert row.result.loss < plain.result.loss
    assert len(stages) == 3


def test_the_loss_of_a_trained_row_is_that_of_the_epoch_that_is_kept(made, monkeypatch):
    train_on = Run.train_on

    def better_before(*given, **how):
        result = train_on(*given, **how)
        return replace(result, losses=[1.5, *result.losses], best_epoch=0)

    monkeypatch.setattr(Run, "train_on", better_before)
    assert made("random", Units(6), epochs=1).result.loss == 1.5


# ---------------------------------------------------------------- gates


def values(row: Row, what: str = "log_alpha") -> dict[tuple[str, int], float]:
    sites = row.run.read_json("gates.json")["sites"]
    return {(name, head["head"]): head[what] for name, heads in sites.items() for head in heads}


def open_units(row: Row) -> set[tuple[str, int]]:
    return {(name, head) for name, each in kept(row).items() for head in each if name.split(".")[2] in KINDS}


def test_a_priced_gate_closes_where_it_is_more_likely_0_than_1(made):
    row = made("l0", Lambda(1.0), epochs=2)
    log_alpha = values(row)
    assert open_units(row) == {head for head, value in log_alpha.items() if value > 0}
    assert 0 < row.result.heads_open < 16


@pytest.mark.parametrize(
    ("choose", "fields"),
    [
        ("l0", {"epochs": 1}),
        ("subset", {"epochs": 1}),
        ("subset", {"refit": "out+ffn+v"}),
    ],
)
def test_gates_that_are_given_a_number_keep_the_highest_so_many(made, choose, fields):
    row = made(choose, NINE, **fields)
    found, stay = values(row, "score" if choose == "subset" else "log_alpha"), open_units(row)
    assert len(stay) == 9
    assert min(found[head] for head in stay) >= max(found[head] for head in found if head not in stay)
    assert (row.result.stage is None) == ("epochs" not in fields)


def test_weights_are_frozen_while_gates_choose_before_a_refit(monkeypatch, tiny):
    from headgates.lightning_modules import stage as training

    seen, run_stage = {}, training.run_stage

    def watched(name, module, *rest, **options):
        before = {key: weight.clone() for key, weight in module.model.state_dict().items()}
        result = run_stage(name, module, *rest, **options)
        after = module.model.state_dict()
        seen[name] = {key for key in before if not torch.equal(before[key], after[key])}
        return result

    monkeypatch.setattr(training, "run_stage", watched)
    row = made_on(tiny, Recipe("l0", NINE, refit="out"))
    assert {name.split(".")[0] for name in seen["gates: choice"]} == {"head_gates"}
    assert not list(row.run.path.glob("choice-*.pt"))


def test_gates_and_weights_learn_for_a_share_without_a_refit_and_what_is_left_trains_on(
    monkeypatch, tiny, at_once
):
    train_on, begun = Run.train_on, []

    def watched(run, name, predictor, stage, **given):
        model = predictor.model
        begun.append((name, stage.epochs, size(model), {k: v.clone() for k, v in model.state_dict().items()}))
        if len(begun) == 3:  # cut off before the smaller model trains
            raise RuntimeError("cut off")
        return train_on(run, name, predictor, stage, **given)

    monkeypatch.setattr(Run, "train_on", watched)
    recipe = Recipe("l0", Share("params", 0.8), ALL_KINDS, epochs=3)
    with pytest.raises(RuntimeError, match="cut off"):
        made_on(tiny, recipe)
    row = made_on(tiny, recipe, resume=True)
    (_, first, whole, base), cut, _, (_, rest, left, again) = begun[1:]  # the base trained as long is before
    assert [name for name, *_ in begun[1:]] == ["gates", "training", "gates", "training"]
    assert (first, rest) == (1, 2)
    assert left <= 0.8 * whole
    assert all(torch.equal(again[key], weight) for key, weight in cut[3].items()), (
        "resumed from another model"
    )
    embedding = next(key for key in base if "embed" in key)
    assert not torch.equal(again[embedding], base[embedding]), "the weights learned with the gates"
    stage = row.result.stage
    assert (stage["epochs"], len(stage["losses"]), stage["settled"]) == (3, 3, stage["steps"] // 3)
    assert row.result.loss == pytest.approx(stage["losses"][stage["best_epoch"]], abs=1e-4)
    assert stage["best_epoch"] > 0, "the result of the gates' stage, which has all parts"


def test_gates_close_neurons_beside_heads(made):
    row = made("l0", Units(9, 96), ALL_KINDS, epochs=1)
    assert (row.result.heads_open, row.result.neurons_open) == (9, 96)


# ---------------------------------------------------------------- sizes, speeds, drops


BUDGETS = {
    "plan": ("plan", Share("params", 0.8), ALL_KINDS),
    "plan of heads": ("plan", Share("params", 0.9)),
    "lowest first": ("importance", Share("params", 0.8), ALL_KINDS),
    "learned": ("l0", Share("params", 0.8), ALL_KINDS),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_share_of_the_parameters_is_met_and_not_by_far(made, shared, at_once, name):
    row = made(*BUDGETS[name])
    share = row.recipe.budget.share
    found, whole = size(opened(row.run).model), size(opened(shared[1]).model)
    assert share - 0.08 < found / whole <= share + 1e-9
    assert row.result.parameters == found
    assert row.result.speed["predicted"] == pytest.approx(whole / found, rel=0.01)
    if name == "plan of heads":
        assert {name for name, each in kept(row).items() if name.endswith("ffn") and len(each) < 64} == set()


def test_losses_where_training_is_in_bf16_are_rounded_and_kept_apart_from_those_in_fp32(tiny, at_once):
    rises = []
    for precision in ("32", "bf16"):
        made_on(tiny, Recipe("plan", Share("params", 0.8), ALL_KINDS, epochs=1), precision=precision)
        name = f"levels-all{'-bf16' * (precision != '32')}-s1.json"
        rows = RunFolder(tiny / BASE).read_json(f"speed/{name}")["widths"].items()
        rises.append([rise for site, own in rows for units, rise in own.items()])
    fp32, bf16 = torch.tensor(rises)
    assert not torch.equal(fp32, bf16)
    # summed over some hundred tokens
    assert (fp32 - bf16).abs().max() < 0.05 * fp32.abs().max()


def test_a_share_of_the_multiply_adds_and_a_speed_by_the_own_search_are_met(
    made, at_once, monkeypatch, capsys
):
    monkeypatch.setattr(planning, "LONG", 0.0)
    macs = made("plan", Share("macs", 0.8), ALL_KINDS)
    assert macs.result.speed["predicted"] >= 1 / 0.8
    asked = Speed(1.2, "torch", 7, NO_SHORTLIST)  # parameters stand for time
    speed = made("plan", asked, ALL_KINDS, refit="out+ffn+v")
    assert opened(speed.run).model is not None
    assert size(opened(speed.run).model) <= 1.01 * speed.run.row_of("base").parameters / 1.2
    assert speed.result.speed["runtime"] == "torch"
    said = capsys.readouterr().out
    words = ["planning takes about", "timing layers", "on other lines), loss"]
    assert [said.count(each) > 0 for each in words] == [True] * 3
    assert sorted(words, key=said.index) == words
    low, high = speed.result.speed["predicted_on_other_lines"]
    assert f"predicted {speed.result.speed['predicted']:.2f} ({low:.2f} to {high:.2f} on other lines)" in said
    with pytest.raises(ValueError, match="nothing costs"):
        made("plan", Speed(1000.0, "torch", 7), ALL_KINDS)


def test_a_plan_takes_a_shortlist_where_layers_do_not_suffice_and_its_run_has_it(made, at_once, shared):
    with pytest.raises(ValueError, match="nothing costs"):
        made("plan", Speed(TOO_FAST, "torch", 7, NO_SHORTLIST), ALL_KINDS)
    row = made("plan", Speed(TOO_FAST, "torch", 7), ALL_KINDS)
    base, ours = opened(shared[1]).translator, opened(row.run).translator
    chosen = row.result.speed["shortlist"]
    assert ours.shortlist.best == int(chosen["by"])
    assert 0 < chosen["rows"] < chosen["of"] == base.model.target_vocab
    rows = (chosen["of"] - chosen["rows"]) * base.model.config.d_model
    assert size(ours.model) - rows <= 1.01 * size(base.model) / TOO_FAST
    assert opened(row.run, "base").translator.shortlist is base.shortlist is None
    outputs = row.run.outputs("pruned")
    assert ours.translate(opened(shared[1]).lines("test", len(outputs))[0]) == outputs


def test_a_shortlist_beside_a_speed_is_the_plan_s_and_that_of_its_shape_from_random_weights(made, at_once):
    row = made("scratch", Speed(1.1, "torch", 7, "25"), ALL_KINDS, epochs=1)
    assert opened(row.run).translator.shortlist.best == 25
    assert row.result.speed["shortlist"]["by"] == "25"


def test_the_rival_of_a_plan_for_a_size_has_its_shape_and_trains_as_long_as_for_a_speed(made, stages):
    size, plan = Share("params", 0.7), made("plan", Share("params", 0.7), ALL_KINDS)
    rival = made("scratch", size, ALL_KINDS, epochs=1)
    models = [opened(each.run).model.state_dict() for each in (plan, rival)]
    shapes = [{name: each.shape for name, each in model.items()} for model in models]
    assert shapes[0] == shapes[1]
    assert rival.result.stage["epochs"] == 2
    assert stages[-1] == "plan-scratch"  # after the base as long, unless another test has made that


def test_a_model_that_nobody_trains_is_timed_refitted_and_one_that_trains_by_the_lengths_of_the_base(
    made, at_once, monkeypatch
):
    timed = []

    def watched(this, base, *how):
        timed.append(this.model)
        return by_size(this, base, *how)

    monkeypatch.setattr(planning, "compared", watched)
    monkeypatch.setattr(planning, "TIMED", 1000)  # as many lines as the model that is made is refitted on
    row = made("plan", Speed(1.25, "torch", 7), ALL_KINDS, refit="out+ffn+v")
    *candidates, _ = timed  # the last is the model that was made
    final = opened(row.run)
    with torch.no_grad():
        batches = [*final.data().batches("valid", 4000)]
        found = [[model(batch.source, batch.target_in) for batch in batches] for model in candidates]
    assert any(close(each, logits(final)) for each in found)
    timed.clear()
    made("plan", Speed(1.25, "torch", 7), ALL_KINDS, refit="out+ffn+v", epochs=1)
    assert len(timed) == 1


def test_a_plan_says_what_its_model_adds_to_the_loss_once_it_is_refitted(made, monkeypatch):
    monkeypatch.setattr(planning, "TIMED", 1000)  # as many lines as the model that is made is refitted on
    row = made("plan", Share("params", 0.7), ALL_KINDS, refit="out+ffn+v")
    rise = valid_loss(opened(row.run)) - valid_loss(opened(row.run, "base"))
    assert row.result.speed["loss"] == pytest.approx(rise, abs=1e-3)


def valid_loss(source: Source) -> float:
    """Nats per target token."""
    batches = [*source.data().batches("valid", 4000)]
    with torch.no_grad():
        losses = [float(source.task.loss(source.model.eval(), batch)) for batch in batches]
    return sum(losses) / sum(batch.target_tokens for batch in batches)


def test_no_smaller_plan_is_tried_after_one_whose_outputs_do_not_end(made, at_once, monkeypatch, capsys):
    def endless(this, base, *how):
        outputs, speed = by_size(this, base, *how)
        slow = dict.fromkeys(("median", "lowest", "highest"), 1.0)
        return outputs, speed | {"tokens": 1.5, "measured": speed["measured"] | slow}

    monkeypatch.setattr(planning, "compared", endless)
    monkeypatch.setattr(planning, "load_average", lambda: 999.5)
    made("plan", Speed(1.25, "torch", 7, NO_SHORTLIST), ALL_KINDS)
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warning: the load of this machine is 999.5 on ") for line in said)
    (line,) = (line for line in said if line.startswith("1.00 times as fast ("))
    assert re.search(r"on other lines\), loss [+-]\d+\.\d\d: \d+ of ", line), line
    assert any("it writes 1.5 times as many pieces as the base" in line for line in said)
    assert "no plan is 1.25 times as fast: the fastest found is 1.00; ask for less, or give --epochs" in said


def test_larger_plans_are_tried_after_one_whose_outputs_do_not_end():
    site, timed = HeadSite.at("enc-self", 0, 10), []

    def plan_for(budget):
        units = HeadMap({site: torch.arange(10) < int(budget // 10)})
        return Plan(Subnet(units, {"encoder": (True,)}), cost=10.0 * int(budget // 10), loss=-budget)

    def speed_of(plan):
        timed.append(plan.cost)
        return (3.0, None, 1.5) if plan.cost <= 80 else (1.25, None, 1.0)

    outputs = SimpleNamespace(words=lambda output: "")
    usual = SimpleNamespace(
        budget="speedup", full=100.0, on_other_lines={}, outputs=outputs, speed_of=speed_of
    )
    found = Planning.reached(usual, None, plan_for, 80.0)
    assert timed[0] == 80
    assert max(timed) > 80 == found.cost


@pytest.mark.parametrize(
    ("choose", "first"), [("importance", "planning.head_scores"), ("l0", "by_gates.choose_on_frozen")]
)
def test_the_time_of_planning_is_told_before_scores_and_gates(
    made, at_once, monkeypatch, capsys, choose, first
):
    def stop(*given):
        raise ValueError("begun")

    monkeypatch.setattr(planning, "LONG", 0.0)
    monkeypatch.setattr(f"headgates.pruning.{first}", stop)
    with pytest.raises(ValueError, match="begun"):
        made(choose, Speed(1.2, "torch", 7), ALL_KINDS)
    assert "planning takes about" in capsys.readouterr().out


def test_new_models_have_random_weights_in_the_shape_or_the_size_of_a_pruned_one(made, at_once, shared):
    learned, scratch = made("l0", NINE, epochs=1), made("scratch", NINE, epochs=1)
    ours, theirs = (opened(each.run).model for each in (learned, scratch))
    assert {site: site.heads for site in find_sites(ours)} == {
        site: site.heads for site in find_sites(theirs)
    }
    base = Subnet.from_json(learned.result.subnet)
    start = opened(shared[1]).model
    base.remove(start)
    before = start.state_dict()
    moved = [
        sum(float((model.state_dict()[name] - before[name]).square().sum()) for name in before)
        for model in (ours, theirs)
    ]
    assert moved[1] > 4 * moved[0]  # no continuation of the base
    assert scratch.result.subnet is None
    smaller = made("uniform", Speed(1.2, "torch", 7), ALL_KINDS, epochs=1)
    assert size(opened(smaller.run).model) <= scratch.run.row_of("base").parameters / 1.2


@pytest.mark.parametrize("choose", ["importance", "l0"])
def test_the_fewest_heads_that_are_accepted_are_taken(made, choose):
    fields = {"epochs": 1} if choose == "l0" else {}
    row = made(choose, MaxDrop(100.0, (9, 4)), **fields)
    assert (row.result.heads_open, row.result.others["drop"]["heads_open"]) == (4, 4)
    assert sum(site.heads for site in find_sites(opened(row.run).model)) == 4
    with pytest.raises(ValueError, match="fewer than the 16"):
        made(choose, MaxDrop(100.0, (16,)), **fields)


def test_own_targets_of_a_plans_refits_are_written_by_the_whole_model(tiny, monkeypatch):
    """Before any layer is skipped, so that no plan's loss depends on which was looked at first."""
    calibration = Calibration(opened(RunFolder(tiny / BASE)), 7, "own")
    few = Planning.few.func(SimpleNamespace(calibration=calibration))
    monkeypatch.setattr(type(calibration.source.task), "outputs", None)
    assert len(few.targeted) == 7


def test_a_cost_table_with_one_number_for_all_layers_of_a_stack_is_made_again(tmp_path):
    """As commits before 4551cadc wrote it."""
    run = SimpleNamespace(lab=SimpleNamespace(provenance=lambda seed: {"versions": {}}))
    source = SimpleNamespace(weights="w", folder=RunFolder(tmp_path))
    planning = SimpleNamespace(runtime="int8", batch=32, beam=5, threads=1, source=source, run=run)
    planning.recipe, planning.text = SimpleNamespace(seed=1), SimpleNamespace(batches=[])
    name, key = Planning.table_file.func(planning)
    before = {each: value for each, value in key.items() if each != "layers"}
    old = {"cache_key": before, "unit": "s", "rest": 0.0, "layers": {"encoder": 0.5}, "parts": []}
    source.folder.write_json(name, old)
    made = CostTable("s", 0.0, {"encoder": (0.5, 0.25)}, ())
    assert Planning.kept(planning, name, CostTable, key, lambda: made).layers == made.layers
