"""The orders of later papers as scores of a run, choices refined at a count, and budgets for each kind of
attention."""

from dataclasses import replace

import pytest

from headgates.analysis.confidence import confidence
from headgates.analysis.lrp import relevance
from headgates.analysis.scores.fisher import fisher, rearranged
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.obs import obs
from headgates.gates import HeadMap
from headgates.pruning.choosers import SCORES
from headgates.pruning.scores import closed_by, head_scores
from tests.pruning.test_scores import dense, request_  # noqa: F401 - fixtures
from tests.worlds.unpruned_model import head_masks, without


def test_scores_of_the_whole_training_text_are_those_of_their_functions(dense, request_):  # noqa: F811
    """The text has fewer pairs than the samples."""
    model, task = dense.translator.model, dense.task
    assert head_scores("obs", request_) == obs(
        model, dense.train_batches(), loss=task.loss, seed=request_.seed
    )
    assert head_scores("fisher", request_) == fisher(model, dense.train_batches(), loss=task.loss)
    assert head_scores("fluctuation", request_) == fluctuation(model, dense.train_batches())
    assert head_scores("confidence", request_) == confidence(model, dense.train_batches())
    assert (
        head_scores("lrp", request_)
        == relevance(model, dense.train_batches(200), logits=task.top_logits).share
    )


@pytest.mark.parametrize("name", ["obs", "fisher", "fluctuation", "confidence", "lrp", "loss"])
def test_the_number_of_pairs_reaches_the_scores_that_read_some(dense, request_, name):  # noqa: F811
    asked, usual = [], dense.train_batches

    def recorded(sentences=0, seed=1):
        asked.append((sentences, seed))
        return usual(sentences, seed)

    dense.train_batches = recorded
    assert head_scores(name, request_) != head_scores(name, replace(request_, sentences=7))
    assert asked == [(SCORES[name].sample, 3), (7, 3)]


@pytest.mark.parametrize("name", ["obs", "fisher", "fluctuation", "lrp"])
def test_a_head_that_writes_nothing_closes_first(dense, request_, name):  # noqa: F811
    for closed in head_masks(dense)[::4]:
        ((site, mask),) = closed.items()
        with without(dense, closed):
            scores = head_scores(name, replace(request_, fresh=True))
        if name == "fluctuation":  # standardised within the site, so nothing is said of others
            scores = HeadMap({site: scores[site]})
        assert scores.lowest(1)[site].equal(mask)


def test_a_choice_is_refined_at_its_count_where_the_score_says_how(dense, request_):  # noqa: F811
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
