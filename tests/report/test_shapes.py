"""The shape of pruned models on the terminal and for the page: layers keep their numbers."""

import shutil
from pathlib import Path

import pytest
import yaml

from headgates.models.transformer import Transformer
from headgates.records.folder import RunFolder
from headgates.records.row import Measure, ResultRow
from headgates.records.source import open_source
from headgates.report.shapes import is_pruned, own_shape, shape_cards, shape_of, shapes_table
from headgates.report.table import own_speed

EXAMPLES = Path(__file__).parents[2] / "examples/toy_run"
SITES = {"encoder.0.enc-self": 5, "encoder.1.enc-self": 5, "decoder.0.dec-self": 7, "decoder.0.cross": 3}
SPEED = {"budget": "speedup", "asked": 2.0, "predicted": 2.047, "unit": "milliseconds"}
SPEED |= {"measured": {"median": 1.971, "lowest": 1.9, "highest": 2.0}, "tokens": 1.0}


def row(**fields) -> ResultRow:
    measures = {"bleu": Measure(38.0, "nrefs:1", (37.0, 39.0), -0.21, (-0.68, 0.31))}
    usual = {"system": "plan", "heads_open": 3, "heads_total": 20, "heads_by_kind": {}, "measures": measures}
    return ResultRow(**(usual | fields))


def test_what_is_left_of_a_cut_model_has_its_old_layer_numbers():
    cut = row(
        heads_by_site={"encoder.0.enc-self": [1], "encoder.1.enc-self": [0, 2]},
        neurons_by_site={"encoder.0.enc-ffn": 16, "encoder.1.enc-ffn": 32},
        layers_left={"encoder": [False, True, True], "decoder": [True]},
    )
    opened = {"encoder.1.enc-self": 1, "encoder.2.enc-self": 2, "encoder.1.enc-ffn": 16}
    assert shape_of(cut) == {
        "open": {**opened, "encoder.2.enc-ffn": 32},
        "dropped": {"encoder": [0], "decoder": []},
    }
    masked = row(
        heads_by_site={f"encoder.{i}.enc-self": [1] * i for i in range(3)},
        layers_left={"encoder": [False, True, True], "decoder": [True]},
    )
    assert shape_of(masked)["open"] == {f"encoder.{i}.enc-self": i for i in range(3)}


def test_a_model_with_all_heads_and_fewer_neurons_is_pruned():
    whole = {"heads_open": 20, "neurons_total": 96}
    assert not is_pruned(row(**whole, neurons_open=96))
    assert is_pruned(row(**whole, neurons_open=80))
    assert is_pruned(row(heads_open=20, layers_left={"encoder": [True, False]}))


def test_the_terminal_has_a_line_for_each_layer_in_the_order_of_the_model(capsys):
    planned = {"open": SITES | {"decoder.0.cross": 2, "encoder.1.enc-ffn": 48}, "dropped": {"encoder": [0]}}
    shapes_table("shapes", {"unpruned": {"open": SITES, "dropped": {}}, "1.5": planned})
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "shapes: in each layer heads of self-attention, of cross-attention, neurons"
    assert [line.split() for line in lines] == [
        ["encoder", "0", "5", "dropped"],
        ["encoder", "1", "5", "5", "48"],
        ["decoder", "0", "7", "3", "7", "2"],
    ]


def written(folder: RunFolder, rows: list[ResultRow], **more) -> RunFolder:
    folder.write_text("config.yaml", yaml.safe_dump({"gate": "plan", "base_hash": "0"}))
    result = {"rows": [each.to_json() for each in rows], "reference": "base", "finished": True, **more}
    folder.write_json("result.json", result)
    return folder


@pytest.mark.parametrize("saved", [False, True])
def test_the_sentence_of_a_planned_model_compares_its_size_with_the_unpruned_model(tmp_path, saved, capsys):
    base, planned = row(system="base", parameters=1000), row(parameters=580, others={"speed": SPEED})
    if saved:  # by prune.py: a base of its own, which says what it was made of
        planned.system = "base"
        run = written(RunFolder(tmp_path), [planned], pruned={"unpruned_model": base.to_json()})
    else:
        run = written(RunFolder(tmp_path), [base, planned], system="plan")
    assert own_speed(run) == (
        "1.97x as fast (predicted 2.05x) at -0.2 BLEU (-0.7 to +0.3), 58% of the parameters"
    )
    own_shape(run)
    assert capsys.readouterr().out.splitlines()[-1] == own_speed(run)


def test_the_page_draws_what_was_planned_on_a_base_and_its_runs_that_closed_something(tmp_path):
    base = RunFolder(shutil.copytree(EXAMPLES / "toy-en-de-none-s1", tmp_path / "base"))
    model = open_source(base.path).model
    assert isinstance(model, Transformer)
    own = base.row_of("base")
    sites = {site: len(heads) for site, heads in (own.heads_by_site or {}).items()}
    shape = {"open": dict.fromkeys(sites, 1), "of": sites, "dropped": {"decoder": [0]}}
    planned = row(parameters=500, others={"speed": SPEED | {"shape": shape}})
    whole = row(system="base", parameters=1000)
    base.write_json("speed/planned.json", {"rows": [each.to_json() for each in (whole, planned)]})
    run = tmp_path / "base-plan"
    run.mkdir()
    written(RunFolder(run), [whole, planned], system="plan")
    RunFolder(run).write_text(
        "config.yaml", yaml.safe_dump({"gate": "plan", "base_hash": base.config()["run_hash"]})
    )
    lost = row(system="l0", heads_by_site={"encoder.0.enc-self": [2, 3]})
    cards = shape_cards(base, model, {"gated": ("learned gates", lost), "all": ("no price", own)})
    assert [(card["label"], card["run"], card["everywhere"]) for card in cards] == [
        ("speedup 2", None, True),
        ("speedup 2, planned, refitted", "base-plan", True),
        ("learned gates", "gated", False),
    ]
    assert all(card["sentence"].endswith("50% of the parameters") for card in cards[:2])
    assert cards[0]["shape"] == shape
    drawn = cards[2]["shape"]
    assert (drawn["open"]["encoder.0.enc-self"], drawn["of"]["encoder.0.enc-self"]) == (2, 8)
    assert drawn["open"]["encoder.0.enc-ffn"] == drawn["of"]["encoder.0.enc-ffn"] > 0
