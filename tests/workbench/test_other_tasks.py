"""Pruning of what does not translate: every number of a task with its own metric and predictor, against a
loop over lines."""

import pytest
import torch

from headgates.configs.prune import PruneConfig
from headgates.gates import HeadMap, find_sites
from headgates.models.checkpoint import weights_digest
from headgates.report.pruning_tables import all_but_one_table, curves_table, one_table
from headgates.workbench.ablated_stats import ablated_outputs, fingerprint
from headgates.workbench.ablation import ablate_all_but_one, ablate_one, chosen_sites, one_head_mask
from headgates.workbench.closing import Calibration, closed_heads
from headgates.workbench.curve import MaskScorer, curve
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.scores import ScoreRequest, head_scores, score_file
from headgates.workbench.table import read_table
from tests.workbench.labelling import Labeller, Labelling
from tests.worlds.dense_model import as_dense

N, R = 97, 101  # lines, resamples
QUIET = {"report": lambda line: None}
CONFIG = PruneConfig("run", step=0.5)


# ---------------------------------------------------------------- the metric


def accuracy(outputs, references) -> float:
    """The slow way: count them."""
    return (
        100 * sum(ours == theirs for ours, theirs in zip(outputs, references, strict=True)) / len(references)
    )


# ---------------------------------------------------------------- the predictor


@pytest.fixture
def labelled(make_dense) -> DenseModel:
    """The untrained model of make_dense as a labeller; of its own labels every fifth is wrong."""
    made = make_dense(seed=5)
    labeller = Labeller(made.translator.model, made.translator.source_vocab)
    texts = []
    for sources, _ in (made.valid, made.test):
        texts.append(
            (sources, ["wrong" if i % 5 == 0 else labeller.label(line) for i, line in enumerate(sources)])
        )
    return as_dense(made.folder, Labelling(), labeller, *texts)


def without(dense: DenseModel, closed: HeadMap, lines: list[str]) -> list[str]:
    """Labels with these heads' columns of W_O at zero: the slow way, without gates."""
    model = dense.source.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for site, attention in find_sites(model).items():
            if site in closed:
                attention.out_proj.weight.unflatten(1, (site.heads, -1))[:, closed[site]] = 0
    found = [dense.source.predictor.label(line) for line in lines]
    model.load_state_dict(before)
    return found


def single_heads(dense: DenseModel) -> list[HeadMap]:
    return [
        one_head_mask(site, head, closed=True)
        for site in chosen_sites(dense.source.model, None)
        for head in range(site.heads)
    ]


def test_its_outputs_under_every_mask_are_those_of_the_model_without_the_heads(labelled):
    lines, sites = labelled.test[0], list(find_sites(labelled.source.model))
    several = [HeadMap({site: torch.arange(site.heads) != i % site.heads for i, site in enumerate(sites)})]
    masks = [*single_heads(labelled), *several, HeadMap({sites[0]: [False] * sites[0].heads})]
    found = ablated_outputs(labelled.source, lines, masks)
    assert found.drafts == without(labelled, HeadMap({}), lines)
    assert [found.hypotheses(i) for i in range(len(masks))] == [
        without(labelled, closed, lines) for closed in masks
    ]
    assert found.changed[-1] == {}
    assert 0 < found.changed_share < 1  # else little was tried


def test_its_model_is_left_without_gates_also_after_an_error(labelled):
    before = {name: tensor.clone() for name, tensor in labelled.source.model.state_dict().items()}
    ablated_outputs(labelled.source, labelled.test[0], single_heads(labelled)[:2])
    labelled.source.predictor.label = None
    with pytest.raises(TypeError):
        ablated_outputs(labelled.source, labelled.test[0], single_heads(labelled)[:2])
    after = labelled.source.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_each_head_removed_alone_scores_as_in_a_loop(labelled):
    rows = ablate_one(labelled, kinds=None, resamples=R, **QUIET)
    sources, references = labelled.test
    base = accuracy(without(labelled, HeadMap({}), sources), references)
    for row, closed in zip(rows, single_heads(labelled), strict=True):
        ours = accuracy(without(labelled, closed, sources), references)
        assert (row["accuracy"], row["accuracy_difference"]) == pytest.approx((ours, ours - base))
    assert len({row["accuracy"] for row in rows}) > 2
    assert not [
        column
        for column in rows[0]
        if ("bleu" in column or "chrf" in column) and not column.endswith("p_sacrebleu")
    ]
    about = labelled.folder.read_json("ablation/one.json")
    assert about["base"] == {"accuracy": pytest.approx(base)}
    assert about["signatures"] == {"accuracy": "exact match"}
    (labelled.folder / "ablation/one.json").unlink()  # as if interrupted: the statistics say the same
    assert ablate_one(labelled, kinds=None, resamples=R, **QUIET) == rows


def test_each_layer_is_reduced_to_its_best_head(labelled):
    rows = ablate_all_but_one(labelled, kinds=None, resamples=R, **QUIET)
    sites = chosen_sites(labelled.source.model, None)
    sources, references = labelled.valid
    for row, site in zip(rows, sites, strict=True):
        found = [
            accuracy(without(labelled, one_head_mask(site, h, closed=False), sources), references)
            for h in range(site.heads)
        ]
        assert row["head"] == found.index(max(found))
        assert row["valid_accuracy"] == pytest.approx(max(found))


def test_its_curve_is_the_accuracy_of_the_model_with_the_lowest_heads_zeroed(labelled):
    name, rows = curve(
        "weight-norm", labelled, CONFIG, kinds=CONFIG.kinds, scorer=MaskScorer(labelled), **QUIET
    )
    scores = HeadMap.load(labelled.folder / "scores/weight-norm.json")
    assert [row["heads_closed"] for row in rows] == [0, 8, 15]
    for row in rows:
        for split, (sources, references) in (("valid", labelled.valid), ("test", labelled.test)):
            ours = accuracy(without(labelled, scores.lowest(row["heads_closed"]), sources), references)
            assert row[f"{split}_accuracy"] == pytest.approx(ours)
    assert read_table(labelled.folder, f"curves/{name}.csv") == rows
    assert labelled.folder.read_json(f"curves/{name}.json")["accuracy_signature"] == "exact match"


@pytest.mark.parametrize("how", ["resample", "out+ffn+v"])
def test_its_heads_are_closed_in_every_way(labelled, how):
    closed, calibration = next(iter(single_heads(labelled))), Calibration(labelled.source)
    before = labelled.source.weights
    with closed_heads(labelled.source.model, closed, how, calibration):
        found = MaskScorer(labelled).score_now()
    assert {split: len(outputs) for split, (_, outputs) in found.items()} == {"valid": 19, "test": 23}
    assert labelled.source.weights == before


def test_its_heads_are_scored_by_what_each_costs_alone(labelled):
    request = ScoreRequest(labelled.source, valid=labelled.valid, **QUIET)
    assert score_file("ablation", request) == "ablation"  # what does not search has no beam
    sources, references = labelled.valid
    base = accuracy(without(labelled, HeadMap({}), sources), references)
    lost = [
        base - accuracy(without(labelled, closed, sources), references) for closed in single_heads(labelled)
    ]
    assert head_scores("ablation", request).flat().tolist() == pytest.approx(lost)


def test_the_terminal_calls_the_metric_by_its_title(labelled, capsys):
    one_table(labelled, ablate_one(labelled, kinds=None, resamples=R, **QUIET))
    all_but_one_table(labelled, ablate_all_but_one(labelled, kinds=None, resamples=R, **QUIET))
    name, rows = curve(
        "weight-norm", labelled, CONFIG, kinds=CONFIG.kinds, scorer=MaskScorer(labelled), **QUIET
    )
    curves_table(labelled, {name: rows})
    said = " ".join(capsys.readouterr().out.split())  # long titles are broken
    assert "test accuracy (difference) by heads closed" in said
    assert "removal alone changes accuracy at" in said
    assert "BLEU" not in said


def test_its_weights_and_settings_are_what_its_files_are_made_of(labelled):
    assert labelled.source.weights == weights_digest(labelled.source.model)
    made_of = fingerprint(labelled.source, labelled.test, single_heads(labelled))
    assert (made_of["weights"], made_of["labels"]) == (labelled.source.weights, 7)
    labelled.source.model.output.weight.data.add_(0.1)
    assert labelled.source.weights != made_of["weights"]


def test_it_is_no_translator(labelled):
    with pytest.raises(ValueError, match="does not translate"):
        _ = labelled.translator
