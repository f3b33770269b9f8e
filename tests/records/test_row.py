"""A row of result.json comes back as it was read."""

import json

import pytest

from headgates.configs.recipe import Recipe, Units
from headgates.records.folder import RunFolder
from headgates.records.row import Measure, ResultRow

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
    expected_open_heads=5.3,
    stage={"losses": [3.0, 2.0]},
    reference="base",
    p_value_vs_base=0.125,
    same_as="base",
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


@pytest.mark.parametrize("name", ["system", "heads_open", "heads_total", "heads_by_kind"])
def test_a_row_that_lacks_what_every_row_has_is_refused(name):
    row = FULL.to_json()
    del row[name]
    with pytest.raises(ValueError, match=rf"'{name}'.*repeat the run with --fresh"):
        ResultRow.from_json(row)


@pytest.mark.parametrize(
    "row",
    ["row", {**FULL.to_json(), "bleu_ci95": [1.0]}, {**FULL.to_json(), "recipe": {"choose": "obs"}}],
    ids=["a word", "half an interval", "half a recipe"],
)
def test_what_is_no_row_is_refused(row):
    with pytest.raises(ValueError, match="repeat the run with --fresh"):
        ResultRow.from_json(row)


@pytest.mark.parametrize("lacks", [("bleu", "hits"), ("hits",)], ids=" and ".join)
def test_a_row_without_a_metric_or_its_value_is_refused(lacks):
    row = {name: value for name, value in FULL.to_json().items() if name not in lacks}
    if lacks == ("bleu", "hits"):
        row = {name: value for name, value in row.items() if not name.endswith("_signature")}
    with pytest.raises(ValueError, match="repeat the run with --fresh"):
        ResultRow.from_json(row)
