"""Pruning of what does not translate: its own metric and predictor beside those of the tables' tests."""

import pytest

from headgates.gates import HeadMap
from headgates.models.checkpoint import weights_digest
from headgates.pruning.ablation import ablated_outputs, ablation_key
from headgates.pruning.closing import Calibration, closed_heads
from headgates.pruning.scores import ScoreRequest, head_scores, score_file
from headgates.records.source import Source
from tests.worlds.unpruned_model import head_masks, outputs


@pytest.fixture
def labelled(labeller) -> Source:
    return labeller()


@pytest.mark.parametrize("how", ["resample", "out+ffn+v"])
def test_its_heads_are_closed_in_every_way(labelled, how):
    closed, calibration = head_masks(labelled)[0], Calibration(labelled)
    before = labelled.weights
    with closed_heads(labelled.model, closed, how, calibration):
        assert len(labelled.task.outputs(labelled.predictor, labelled.lines("test")[0])) == 23
    assert labelled.weights == before


def test_its_heads_are_scored_by_what_each_costs_alone(labelled):
    request = ScoreRequest(labelled, valid=labelled.lines("valid"))
    assert score_file("ablation", request) == "ablation"  # what does not search has no beam
    lines, references = labelled.lines("valid")

    def right(closed: HeadMap) -> float:
        found = outputs(labelled, closed, lines)
        return 100 * sum(map(str.__eq__, found, references)) / len(references)

    lost = [right(HeadMap({})) - right(closed) for closed in head_masks(labelled)]
    assert head_scores("ablation", request).flat().tolist() == pytest.approx(lost)


def test_its_weights_and_settings_are_what_its_files_are_made_of(labelled):
    assert labelled.weights == weights_digest(labelled.model)
    cache_key = ablation_key(labelled, labelled.lines("test"), head_masks(labelled))
    assert (cache_key["weights"], cache_key["labels"]) == (labelled.weights, 7)
    labelled.model.output.weight.data.add_(0.1)
    assert labelled.weights != cache_key["weights"]


def test_its_outputs_under_every_mask_are_those_of_the_model_without_the_heads(labelled):
    lines, masks = labelled.lines("test")[0], [*head_masks(labelled), *head_masks(labelled, others=True)]
    found = ablated_outputs(labelled, lines, masks)
    assert found.drafts == outputs(labelled, HeadMap({}), lines)
    expected = [outputs(labelled, closed, lines) for closed in masks]
    assert [found.hypotheses(i) for i in range(len(masks))] == expected
    assert 0 < found.changed_share < 1  # else little was tried
