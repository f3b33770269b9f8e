"""Scores of heads: what each is by a slow way, which heads close by it, how many at a time, and the files
that hold it."""

import random
from dataclasses import replace

import pytest
import torch

from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.scores.random_score import random_score
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.analysis.significance import score
from headgates.gates import HeadMap, HeadSite
from headgates.pruning.choosers import SCORES
from headgates.pruning.scores import (
    ScoreRequest,
    closed_by,
    head_scores,
    ranked,
    score_file,
)
from headgates.records.source import Source
from tests.worlds.unpruned_model import head_masks, outputs

ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 5), HeadSite.at("dec-self", 0, 3), HeadSite.at("cross", 1, 3)


@pytest.fixture
def dense(make_dense) -> Source:
    return make_dense()


@pytest.fixture
def request_(dense) -> ScoreRequest:
    return ScoreRequest(dense, valid=dense.lines("valid"), seed=3)


# ---------------------------------------------------------------- which heads close


def random_scores(seed: int = 0) -> HeadMap:
    generator = torch.Generator().manual_seed(seed)
    return HeadMap(
        {site: torch.rand(site.heads, generator=generator) * 10**site.layer for site in (ENC, DEC, CROSS)}
    )


@pytest.mark.parametrize("name", SCORES)
def test_exactly_keep_heads_stay_open_and_none_scores_less_than_a_closed_one(name):
    order = ranked(name, random_scores()).flat()
    for keep in range(12):
        closed = closed_by(name, random_scores(), keep=keep)
        assert (closed.heads_total, (~closed).count()) == (11, keep)
        if 0 < keep < 11:
            assert order[closed.flat()].max() <= order[~closed.flat()].min()


def test_a_layer_without_any_importance_is_closed_first():
    given = HeadMap({ENC: torch.zeros(5), DEC: torch.full((3,), 1e-9), CROSS: torch.ones(3)})
    assert closed_by("importance", given, keep=6)[ENC].all()


# ---------------------------------------------------------------- what the scores are


def test_each_score_is_what_its_function_makes_of_the_model(dense, request_):
    model = dense.translator.model
    by_hand = raw_importance(model, dense.train_batches(), loss=dense.task.loss)
    assert head_scores("importance", request_) == by_hand
    assert head_scores("raw-importance", replace(request_, fresh=True)) == by_hand
    assert ranked("importance", by_hand) == by_hand.l2_per_layer() != ranked("raw-importance", by_hand)
    assert head_scores("weight-norm", request_) == weight_norm(model)
    assert head_scores("random", request_) == random_score(model, seed=3)
    assert head_scores("random", replace(request_, seed=4)) != random_score(model, seed=3)


def test_the_pairs_that_are_read_are_drawn_from_all_of_the_runs(dense):
    train = dense.corpus.train
    drawn = sorted(random.Random(1).sample(range(len(train)), 7))
    by_hand = replace(dense.corpus, train=train.only(drawn, reason="not drawn"))
    own = [batch for batch in dense.data(by_hand).batches("train", 4000)]
    for ours, theirs in zip(dense.train_batches(7), own, strict=True):
        assert ours.source.equal(theirs.source)
        assert ours.target_out.equal(theirs.target_out)
    dense.config["text"] = dense.config["text"] | {"train_sentences": 5}
    assert sum(map(len, dense.train_batches(7))) == 5  # of the run's own pairs, which are no more


@pytest.mark.parametrize("name", ["importance", "raw-importance"])
def test_scores_with_heads_shut_are_those_of_the_model_without_them_and_are_not_kept(dense, request_, name):
    whole = head_scores("importance", request_)
    shut = whole.lowest(4)
    again = head_scores(name, replace(request_, closed=shut))
    assert again == raw_importance(
        dense.translator.model, dense.train_batches(), loss=dense.task.loss, closed=shut
    )
    assert (again.flat()[shut.flat()] == 0).all()
    assert HeadMap.load(dense.folder / "scores/importance.json") == whole != again


def test_the_ablation_score_is_the_validation_bleu_lost_without_the_head(dense, request_):
    scores = head_scores("ablation", replace(request_, kinds=["cross"]))
    assert {site.kind for site in scores} == {"cross"}
    lines, references = dense.lines("valid")

    def bleu(closed: HeadMap) -> float:
        return score(outputs(dense, closed, lines), references)["bleu"]

    lost = [bleu(HeadMap({})) - bleu(each) for each in head_masks(dense) if next(iter(each)) in scores]
    assert scores.flat().tolist() == pytest.approx(lost, abs=1e-9)


# ---------------------------------------------------------------- files


def test_kept_scores_of_another_model_are_refused(dense, request_):
    found = head_scores("importance", request_)
    other = HeadMap({site: row for site, row in found.items() if site.kind != "cross"})
    kept = dense.folder.read_json("scores/importance.json")
    dense.folder.write_json("scores/importance.json", kept | {"heads": other.to_json()})
    with pytest.raises(
        ValueError,
        match=r"scores/importance\.json .*: it has no scores of the \d heads of decoder\.0\.cross; .*--fresh",
    ):
        head_scores("importance", request_)


@pytest.mark.parametrize(
    ("name", "changes", "file"),
    [
        ("importance", {}, "importance"),
        ("raw-importance", {}, "importance"),
        ("weight-norm", {}, "weight-norm"),
        ("ablation", {}, "ablation"),
        ("random", {"seed": 3}, "random-seed3"),
        ("importance", {"sentences": 100}, "importance-n100"),
        ("ablation", {"sentences": 7}, "ablation"),
        ("ablation", {"kinds": ["cross", "enc-self"]}, "ablation-enc-self+cross"),
        ("obs", {}, "obs-n1000"),
        ("lrp", {}, "lrp-n200"),
        ("importance", {"sentences": 7}, "importance-sampled7"),
    ],
)
def test_the_file_names_all_that_the_scores_depend_on_and_no_more(dense, name, changes, file):
    assert score_file(name, ScoreRequest(dense, valid=dense.lines("valid"), **changes)) == file
