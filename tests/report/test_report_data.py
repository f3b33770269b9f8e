"""What the page is told beside the gates: what trained on as long as they did."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headgates.configs.analyze import AnalyzeConfig
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import DRAWN_PIECES, SENTENCES, SHOWN, run_analyses
from headgates.gates import find_sites
from headgates.records.folder import RunFolder
from headgates.records.related import open_gate_run
from headgates.records.table import read_table
from headgates.report.report_data import (
    costly_sentences,
    curves_of,
    drawn_sentence,
    gate_history,
    removals,
    trained_curves,
)

RUN = RunFolder(Path(__file__).parents[2] / "examples/toy_run/toy-en-de-l0-0.015-s1")


def test_the_continued_base_and_fine_tuned_pruning_stand_beside_the_gates():
    rows = {row["system"]: row for row in json.loads((RUN / "result.json").read_text())["rows"]}
    curves = {curve["name"]: curve for curve in trained_curves([open_gate_run(RUN)])}
    assert sorted(curves) == ["base-continued", "importance:trained"]
    for name, curve in curves.items():
        row = rows[name]
        low, high = row["bleu_ci95"]
        assert curve["points"] == [
            {"heads_open": row["heads_open"], "value": row["bleu"], "low": low, "high": high}
        ]
        assert (curve["trained"], curve["beam"]) == (True, row["evaluation"]["search"]["beam"])


def test_of_two_curves_of_one_order_the_one_on_more_test_lines_is_drawn(tmp_path):
    """They lie on each other."""
    base = RunFolder(shutil.copytree(RUN.path.with_name("toy-en-de-none-s1"), tmp_path / "base"))
    file = "curves/importance-step0.25-beam4-t400"
    usual = curves_of(base)
    for end in (".json", ".csv", "-order.json"):
        shutil.copyfile(base / f"{file}{end}", base / f"curves/importance-t37{end}")
    record = base.read_json(f"{file}.json")
    record["cache_key"]["test"]["sentences"] = 37
    base.write_json("curves/importance-t37.json", record)
    assert curves_of(base) == usual
    record["cache_key"]["order"] = "random"
    base.write_json("curves/importance-t37.json", record)
    assert "random" in {curve["name"] for curve in curves_of(base)}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no zip at all"])
def test_a_broken_history_of_gates_is_one_line_that_names_it(tmp_path, content):
    (tmp_path / "gates_history.npz").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"gates_history\.npz is not a whole .*; repeat the run .*, or remove the file"
    ):
        gate_history(RunFolder(tmp_path))


def test_several_runs_give_one_curve_from_many_heads_to_few():
    run = open_gate_run(RUN)
    twice = trained_curves([run, run])
    assert [len(curve["points"]) for curve in twice] == [1, 1]  # the same point
    assert trained_curves([]) == []


def test_a_head_s_card_has_what_its_removal_alone_did_and_both_p_values():
    base = RunFolder(RUN.path.with_name("toy-en-de-none-s1"))
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
    folder = Path(shutil.copytree(RUN.path.with_name("toy-en-de-none-s1"), tmp_path / "base"))
    config = AnalyzeConfig(sources=[str(folder)], threads=1, sentences=60)
    analysed = AnalysedModel.open(config, lambda text: None)
    results = run_analyses(analysed, ["sentences"])
    sentences = {each["number"]: each for each in costly_sentences(analysed, results)}
    split, model, task = analysed.data.split("valid"), analysed.predictor.model, analysed.source.task
    read = [i for i in range(len(split)) if max(map(len, split.pairs[i])) <= DRAWN_PIECES][:SENTENCES]
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
