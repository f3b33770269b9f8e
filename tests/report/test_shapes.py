"""The shape of smaller models on the terminal and for the page: layers keep the numbers of the base."""

import pytest

from headgates.configs.recipe import Layers, Recipe, Speed, Units
from headgates.records.row import BASE
from headgates.report.shapes import own_shape, shape_cards, shape_of
from headgates.report.table import own_speed
from tests.report.made_runs import made_run, toy_base

PLANNED = Recipe("plan", Speed(2.0))
SPEED = {"budget": "speedup", "asked": 2.0, "predicted": 2.047, "unit": "milliseconds"}
SPEED |= {"measured": {"median": 1.971, "lowest": 1.9, "highest": 2.0}, "tokens": 1.0}
SPEED |= {"timed": "int8, batch 1", "runtimes": {}}


def test_the_terminal_has_a_line_for_each_layer_in_the_order_of_the_model(tmp_path, capsys):
    own_shape(made_run(toy_base(tmp_path), PLANNED, 3, 90.0, dropped={"encoder": [0]}))
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "shape: in each layer heads of self-attention, of cross-attention"
    assert [line.split() for line in lines] == [
        ["encoder", "0", "dropped"],
        ["encoder", "1", "5"],
        ["decoder", "0", "5", "5"],
        ["decoder", "1", "5", "5"],
    ]


def test_the_sentence_of_a_planned_model_compares_its_size_with_the_base(tmp_path, capsys):
    base = toy_base(tmp_path)
    run = made_run(base, PLANNED, 3, 94.0, speed=SPEED)
    share = run.row_of("pruned").parameters / base.row_of(BASE).parameters
    assert own_speed(run).startswith("1.97x as fast by int8, batch 1 (predicted 2.05x) at -1.0 BLEU (")
    assert own_speed(run).endswith(f"{share:.0%} of the parameters")
    own_shape(run)
    assert capsys.readouterr().out.splitlines()[-1] == own_speed(run)
    untrained = made_run(base, PLANNED, 3, 94.0, speed=SPEED | {"predicted_on_other_lines": (1.5, 2.6)})
    assert "(predicted 2.05x (1.50 to 2.60 on other lines))" in own_speed(untrained)
    fewer = made_run(base, PLANNED, 3, 94.0, speed=SPEED | {"budget": "params", "unit": "parameters"})
    assert "(planned: 49% of the parameters)" in own_speed(fewer)


def test_the_page_draws_runs_that_lost_something_and_plans_on_every_page(tmp_path):
    base = toy_base(tmp_path)
    runs = [
        made_run(base, PLANNED, 3, 94.0, dropped={"decoder": [0]}, speed=SPEED),
        made_run(base, Recipe("importance", Units(42)), 1, 94.0),
        made_run(base, Recipe("l0", Units(48)), 0, 94.0),  # nothing closed
        made_run(base, Recipe("layers", Layers(("decoder.0",))), 0, 94.0, dropped={"decoder": [0]}),
    ]
    cards = shape_cards([base, *runs])
    assert [(card["label"], card["everywhere"], card["sentence"] is None) for card in cards] == [
        ("planned, 2 times the speed", True, False),
        ("importance, 42 heads", False, True),
        ("layers dropped, without decoder.0", False, True),
    ]
    first, second, _ = (card["shape"] for card in cards)
    assert (first["open"]["decoder.0.cross"], first["of"]["decoder.0.cross"]) == (0, 8)
    assert first["dropped"] == {"decoder": [0]}
    assert (second["open"]["decoder.0.cross"], second["dropped"]) == (7, {})
    assert shape_of(base.row_of(BASE)) is None


def test_a_subnet_of_others_with_more_layers_than_memory_is_refused_at_once(tmp_path):
    row = toy_base(tmp_path).row_of(BASE)
    row.subnet = {"version": 1, "sites": {}, "layers": {"encoder": {"of": 10**11, "stay": [0]}}}
    with pytest.raises(ValueError, match="expected 'encoder' to be like"):
        shape_of(row)
