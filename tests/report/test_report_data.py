"""What the page is found of the runs on a base, of single heads and of sentences."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from headgates.configs.analyses import Analyses
from headgates.configs.recipe import Lambda, Recipe, Units
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import DRAWN_PIECES, MEASURED_SENTENCES, SHOWN, run_analyses
from headgates.explain.findings import Findings
from headgates.gates import find_sites
from headgates.records.folder import RunFolder
from headgates.records.related import open_made_run
from headgates.records.table import read_table
from headgates.report.report_data import (
    costly_sentences,
    curves_of,
    drawn_sentence,
    gate_history,
    head_cards,
    removals,
    report_data,
)
from tests.report.conftest import GATED, SHUT
from tests.report.made_runs import TOY, made_run, toy_base

IMPORTANCE = Recipe("importance", Units(42))
LEARNED = Recipe("l0", Lambda(0.015), epochs=1)


def test_states_are_all_runs_and_curves_those_that_no_gates_learned_and_the_continued_base(tmp_path):
    base = toy_base(tmp_path)
    learned = made_run(base, LEARNED, 3, 90.0, continued=94.0)
    runs = [made_run(base, replace(IMPORTANCE, budget=Units(48 - 6 * n)), n, 90.0 - n) for n in (1, 2)]
    opened = [open_made_run(run) for run in (*runs, learned)]
    curves = {each["name"]: each for each in curves_of(opened)}
    assert list(curves) == ["importance", "unpruned, trained as long, 1 epoch"]
    points = [(point["heads_open"], point["value"], point["low"]) for point in curves["importance"]["points"]]
    assert points == [(42, 89.0, 88.0), (36, 88.0, 87.0)]
    assert [each["trained"] for each in curves.values()] == [False, True]
    assert [each["beam"] for each in curves.values()] == [4, 4]
    analysed = AnalysedModel.open([str(base.path)], Analyses(siblings=True, threads=1), lambda text: None)
    states = report_data(analysed, {}, Findings(), with_examples=False)["states"]
    found = [(each["series"], each["label"], each["learned"], each["heads_open"]) for each in states]
    assert found == [
        ("learned gates, 1 epoch", "λ 0.015", True, 30),
        ("importance", "42 heads", False, 42),
        ("importance", "36 heads", False, 36),
    ]
    assert states[0]["open"]["decoder.1.cross"] == [False] * 3 + [True] * 5


def test_a_point_of_a_curve_is_the_mean_over_seeds_with_the_widest_interval(tmp_path):
    base = toy_base(tmp_path)
    runs = [made_run(base, replace(IMPORTANCE, choose="random", seed=s), 1, 80.0 + s) for s in (1, 3)]
    (found,) = curves_of(list(map(open_made_run, runs)))
    assert found["points"] == [{"heads_open": 42, "value": 82.0, "low": 80.0, "high": 84.0}]


def test_models_that_differ_in_more_than_the_seed_are_not_averaged_and_thinner_ones_are_no_points(tmp_path):
    base = toy_base(tmp_path)
    of_kind = [replace(IMPORTANCE, kinds=(kind,)) for kind in ("enc-self", "cross")]
    thin = made_run(base, replace(IMPORTANCE, seed=2), 1, 5.0, neurons_open=64, neurons_total=1024)
    flat = made_run(base, replace(IMPORTANCE, seed=3), 1, 5.0, layers_left={"encoder": [True, False]})
    runs = [*(made_run(base, each, 1, 80.0 + i) for i, each in enumerate(of_kind)), thin, flat]
    (found,) = curves_of(list(map(open_made_run, runs)))
    assert [(point["heads_open"], point["value"]) for point in found["points"]] == [(42, 80.0), (42, 81.0)]
    assert curves_of(list(map(open_made_run, runs[2:]))) == []
    assert curves_of([]) == []


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no zip at all"])
def test_a_broken_history_of_gates_is_one_line_that_names_it(tmp_path, content):
    (tmp_path / "gates_history.npz").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"gates_history\.npz is not a whole .*; repeat the run .*, or remove the file"
    ):
        gate_history(RunFolder(tmp_path))


def test_where_heads_were_removed_the_history_of_the_base_s_heads_is_not_theirs():
    config = Analyses(system="pruned", threads=1)
    cards = head_cards(AnalysedModel.open([str(GATED)], config, lambda text: None), {}, [])
    whole = {card["site"] for card in cards if card["gate_path"] is not None}
    assert {card["site"] for card in cards} - whole == {site for site, _ in SHUT}
    assert whole == {"decoder.0.dec-self", "decoder.1.cross"}


def test_a_head_s_card_has_what_its_removal_alone_did_and_both_p_values():
    base = RunFolder(TOY)
    task = SimpleNamespace(metrics=[SimpleNamespace(name="bleu")])
    analysed = SimpleNamespace(is_base=True, base=base, source=SimpleNamespace(task=task))
    row = next(row for row in read_table(base, "ablation/one.csv") if row["head"] == 3)
    assert removals(analysed)[row["site"], 3] == {
        "difference": row["bleu_difference"],
        "p_value": row["p_value"],
        "p_value_holm": row["p_value_holm"],
    }
    assert removals(SimpleNamespace(is_base=False)) == {}


def test_the_sentences_of_a_head_are_those_that_cost_most_without_it_with_its_attention_there(tmp_path):
    base = toy_base(tmp_path)
    analysed = AnalysedModel.open([str(base.path)], Analyses(threads=1, sentences=60), lambda text: None)
    results = run_analyses(analysed, ["sentences"])
    sentences = {each["number"]: each for each in costly_sentences(analysed, results)}
    split, model, task = analysed.data.split("valid"), analysed.predictor.model, analysed.source.task
    read = [i for i in range(len(split)) if max(map(len, split.pairs[i])) <= DRAWN_PIECES][
        :MEASURED_SENTENCES
    ]
    site, module = next(each for each in find_sites(model).items() if each[0].name == "decoder.1.cross")
    columns = module.out_proj.weight.unflatten(1, (site.heads, -1))[:, 5]
    with torch.no_grad():
        whole = [float(task.loss(model, split[([i], 1)])) for i in read]
        before = columns.clone()
        columns.zero_()
        rises = {
            int(split.numbers[i]): float(task.loss(model, split[([i], 1)])) - loss
            for i, loss in zip(read, whole, strict=True)
        }
        columns.copy_(before)
    most = sorted(rises, key=rises.__getitem__, reverse=True)[:SHOWN]
    name = f"{site.name}.5"
    found = {number: each["effects"][name] for number, each in sentences.items() if name in each["effects"]}
    assert found == {number: pytest.approx(rises[number], abs=2e-4) for number in sorted(most)}
    drawn = drawn_sentence(analysed, "valid", int((split.numbers == most[0]).nonzero()[0][0]))
    assert sentences[most[0]]["weights"]["decoder.1.cross"][5] == drawn["weights"]["decoder.1.cross"][5]
    for each in sentences.values():
        kept = {f"{site}.{head}" for site, heads in each["weights"].items() for head in heads}
        assert kept == set(each["effects"])
    again = run_analyses(analysed, ["sentences"])  # from the file
    assert costly_sentences(analysed, again) == list(sentences.values())
