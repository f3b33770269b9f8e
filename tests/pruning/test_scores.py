"""Scores of heads: what each is by a slow way, which heads close by it, how many at a time, and the files
that hold it."""

import random
from dataclasses import replace

import pytest
import torch

from headgates.analysis.confidence import confidence
from headgates.analysis.lrp import relevance
from headgates.analysis.scores.fisher import fisher, rearranged
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.scores.obs import obs
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


def test_what_interferes_most_is_closed_first():
    given = HeadMap({ENC: torch.tensor([0.1, 0.5, 0.2, 0.4, 0.3])})
    assert closed_by("interference", given, keep=3)[ENC].tolist() == [False, True, False, True, False]


def test_a_layer_without_any_importance_is_closed_first():
    given = HeadMap({ENC: torch.zeros(5), DEC: torch.full((3,), 1e-9), CROSS: torch.ones(3)})
    assert closed_by("importance", given, keep=6)[ENC].all()


# ---------------------------------------------------------------- what the scores are


def test_each_score_is_what_its_function_makes_of_the_model(dense, request_):
    """The text has fewer pairs than the samples."""
    model, task, pairs = dense.model, dense.task, dense.train_batches
    by_hand = raw_importance(model, pairs(), loss=task.loss)
    assert head_scores("importance", request_) == by_hand
    assert head_scores("raw-importance", replace(request_, fresh=True)) == by_hand
    assert ranked("importance", by_hand) == by_hand.l2_per_layer() != ranked("raw-importance", by_hand)
    assert head_scores("weight-norm", request_) == weight_norm(model)
    assert head_scores("random", request_) == random_score(model, seed=3)
    assert head_scores("random", replace(request_, seed=4)) != random_score(model, seed=3)
    assert head_scores("obs", request_) == obs(model, pairs(), loss=task.loss, seed=request_.seed)
    assert head_scores("fisher", request_) == fisher(model, pairs(), loss=task.loss)
    assert head_scores("fluctuation", request_) == fluctuation(model, pairs())
    assert head_scores("confidence", request_) == confidence(model, pairs())
    assert head_scores("lrp", request_) == relevance(model, pairs(200), logits=task.top_logits).share


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


@pytest.mark.parametrize("name", ["obs", "fisher", "fluctuation", "confidence", "lrp", "loss"])
def test_the_number_of_pairs_reaches_the_scores_that_read_some(dense, request_, name):
    asked, usual = [], dense.train_batches

    def recorded(sentences=0, seed=1):
        asked.append((sentences, seed))
        return usual(sentences, seed)

    dense.train_batches = recorded
    assert head_scores(name, request_) != head_scores(name, replace(request_, sentences=7))
    assert asked == [(SCORES[name].sample, 3), (7, 3)]


def test_a_choice_is_refined_at_its_count_where_the_score_says_how(dense, request_):
    scores = head_scores("fisher", request_)
    changed = 0
    for keep in range(scores.heads_total + 1):
        plain = closed_by("fisher", scores, keep=keep)
        refined = closed_by("fisher", scores, keep=keep, request=request_)
        assert refined == rearranged(
            dense.translator.model, dense.train_batches(), plain, loss=dense.task.loss
        )
        assert [row.sum() for row in refined.values()] == [row.sum() for row in plain.values()]
        changed += refined != plain
    assert changed  # else nothing was tried
    assert closed_by("obs", scores, keep=3, request=request_) == closed_by("obs", scores, keep=3)


def test_the_ablation_score_is_the_validation_bleu_lost_without_the_head(dense, request_):
    scores = head_scores("ablation", replace(request_, kinds=["cross"]))
    assert {site.kind for site in scores} == {"cross"}
    lines, references = dense.lines("valid")

    def bleu(closed: HeadMap) -> float:
        return score(outputs(dense, closed, lines), references)["bleu"]

    lost = [bleu(HeadMap({})) - bleu(each) for each in head_masks(dense) if next(iter(each)) in scores]
    assert scores.flat().tolist() == pytest.approx(lost, abs=1e-9)


# ---------------------------------------------------------------- files


def raising(model, batches):
    raise KeyError("heads")


def five(model, batches):
    return 5


@pytest.mark.parametrize(("name", "said"), [("raising", "it raised KeyError: 'heads'"), ("five", "got 5")])
def test_a_score_of_ones_own_that_fails_is_one_line(request_, name, said):
    with pytest.raises(ValueError, match=r"expected f\(model, batches\) to return a HeadMap") as error:
        head_scores(f"{__name__}:{name}", request_)
    assert str(error.value).startswith(f"--by {__name__}:{name}: ")
    assert str(error.value).endswith(said)


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
