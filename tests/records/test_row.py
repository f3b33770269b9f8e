"""A row of result.json comes back as it was read."""

import json

import pytest

from headgates.configs.recipe import Recipe, Units
from headgates.records.folder import RunFolder
from headgates.records.row import Measure, ResultRow

STAGE = {"losses": [3.0, 2.0], "best_epoch": 1, "steps": 7, "epochs": 2, "seconds": 3.5, "converged": None}
FULL = ResultRow(
    system="pruned",
    heads_open=5,
    heads_total=7,
    heads_by_kind={"enc-self": 5},
    measures={
        "hits": Measure(31.0, "of a toy", (29.0, 37.0), -2.0, (-3.0, 1.0), 0.25, 0.125),
        "bleu": Measure(41.0, "nrefs:1", (37.0, 43.0), 0.5, (0.0, 1.0), 0.5, 0.25),
    },
    heads_by_site={"encoder.0.enc-self": [0, 1, 3]},
    parameters=113,
    seconds=17.0,
    evaluation={"sentences": 23},
    stage=STAGE,
    reference="base",
    p_value_vs_base=0.125,
    recipe=Recipe("importance", Units(5), refit="out"),
    loss=1.75,
    others={"score": 11.0},
)


def test_a_row_with_every_field_comes_back_from_text_and_the_first_metric_decides():
    row = json.loads(json.dumps(FULL.to_json()))
    assert ResultRow.from_json(row) == FULL
    assert (FULL.metric, FULL.main.value, row["p_value_vs_reference"]) == ("hits", 31.0, 0.25)


def test_a_row_before_the_comparison_has_its_score_alone():
    row = ResultRow("base", 7, 7, {"enc-self": 7}, {"bleu": Measure(41.0, "nrefs:1")})
    assert not {"reference", "bleu_ci95", "bleu_difference", "stage"} & row.to_json().keys()
    assert ResultRow.from_json(row.to_json()) == row
    assert row.is_base


def test_what_this_version_does_not_know_is_kept(tmp_path):
    row = {**FULL.to_json(), "comet": 0.83, "by_length": {"short": 1}}
    RunFolder(tmp_path).write_json("result.json", {"rows": [row]})
    (back,) = RunFolder(tmp_path).rows()
    assert back.others == {"score": 11.0, "comet": 0.83, "by_length": {"short": 1}}
    assert back.to_json() == row


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        *(({name: None}, f"{name} is a NoneType") for name in ("system", "heads_open", "heads_by_kind")),
        ({"bleu_ci95": [1.0]}, "bleu.ci95 has 1 items, expected 2"),
        ({"bleu": None}, "bleu.value is a NoneType"),
        ({"recipe": {"choose": "obs"}}, "expected a recipe"),
        ({"stage": {"losses": [3.0, None]}}, "stage.best_epoch is missing"),
        ({"stage": {**STAGE, "best_epoch": 2}}, "stage.best_epoch is 2, of 2 losses"),
        ({"stage": {**STAGE, "losses": [], "best_epoch": 0}}, "stage.best_epoch is 0, of 0 losses"),
        ({"evaluation": {"search": "greedy"}}, "evaluation.search is a str"),
        ({"speed": {"measured": 2.0}}, "speed.budget is missing"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(changes, wrong):
    with pytest.raises(ValueError, match=rf"{wrong}.*repeat the run with --fresh"):
        ResultRow.from_json(json.loads(json.dumps(FULL.to_json() | changes)))


def test_a_row_without_a_metric_is_refused():
    row = {name: v for name, v in FULL.to_json().items() if not name.startswith(("bleu", "hits"))}
    with pytest.raises(ValueError, match="no metric with its signature"):
        ResultRow.from_json(row)
