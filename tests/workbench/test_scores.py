"""Scores of heads: what each is by a slow way, which heads close by it, how many at a time, and the files
that hold it."""

import random
from dataclasses import replace

import pytest
import torch

from headgates.analysis.scores.importance import importance
from headgates.analysis.scores.random_score import random_score
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.analysis.significance import score
from headgates.configs.prune import PruneConfig
from headgates.configs.scores import SCORES
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.workbench.curve import score_request
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.scores import (
    ScoreRequest,
    closed_by,
    head_scores,
    kinds_suffix,
    ranked,
    score_file,
    step_counts,
)

ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 5), HeadSite.at("dec-self", 0, 3), HeadSite.at("cross", 1, 3)
LINEAR = [name for name, one in SCORES.items() if not one.l2 and one.sign == 1]  # closed as they are


def quiet(text: str) -> None:
    pass


@pytest.fixture
def dense(make_dense) -> DenseModel:
    return make_dense()


@pytest.fixture
def request_(dense) -> ScoreRequest:
    return ScoreRequest(dense.source, valid=dense.valid, seed=3, report=quiet)


# ---------------------------------------------------------------- the table


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("heads", "step", "counts"),
    [
        (72, 0.1, [0, 8, 15, 22, 29, 36, 44, 51, 58, 65, 72]),  # ceil(72 * i / 10), the paper's code
        (10, 0.1, list(range(11))),  # 10 * 3 * 0.1 is a little above 3 in floating point
        (7, 0.3, [0, 3, 5, 7]),
        (6, 0.1, [0, 1, 2, 3, 4, 5, 6]),  # a number that comes twice is one step
        (11, 1.0, [0, 11]),
        (5, 0.001, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_steps_close_the_ceiling_of_their_share_until_all_are_closed(heads, step, counts):
    assert step_counts(heads, step) == counts


# ---------------------------------------------------------------- which heads close


def random_scores(seed: int = 0) -> HeadMap:
    generator = torch.Generator().manual_seed(seed)
    return HeadMap(
        {site: torch.rand(site.heads, generator=generator) * 10**site.layer for site in (ENC, DEC, CROSS)}
    )


@pytest.mark.parametrize("name", SCORES)
def test_exactly_keep_heads_stay_open(name):
    for keep in range(12):
        closed = closed_by(name, random_scores(), keep=keep)
        assert (~closed).count() == keep
        assert closed.heads_total == 11


@pytest.mark.parametrize("name", LINEAR)
def test_every_closed_head_scores_no_more_than_every_open_one(name):
    closed = closed_by(name, random_scores(), keep=4)
    flat = random_scores().flat()
    assert flat[closed.flat()].max() <= flat[~closed.flat()].min()


def test_reverse_closes_the_heads_that_gradient_keeps():
    for keep in range(12):
        assert closed_by("reverse", random_scores(), keep=keep) == ~closed_by(
            "importance", random_scores(), keep=11 - keep
        )


def test_l2_divides_each_layer_by_the_norm_of_its_scores():
    # raw, the first layer is a hundredth of the second; normalised (0.6, 0.8) against (0.28, 0.96)
    small, large = HeadSite.at("enc-self", 0, 2), HeadSite.at("enc-self", 1, 2)
    given = HeadMap({small: [3.0, 4.0], large: [700.0, 2400.0]})
    assert closed_by("weight-norm", given, keep=2)[small].tolist() == [True, True]
    normalised = closed_by("importance", given, keep=2)
    assert normalised[small].tolist() == [True, False]
    assert normalised[large].tolist() == [True, False]


def test_gradient_is_divided_by_the_norm_of_its_layer_and_others_are_not_unless_asked():
    given = random_scores()
    assert ranked("importance", given) == given.l2_per_layer()
    assert ranked("importance", given, l2=False) == given
    assert ranked("reverse", given) == given.l2_per_layer().map(lambda row: -row)
    assert ranked("ablation", given) == given
    assert ranked("ablation", given, l2=True) == given.l2_per_layer()


def test_equal_scores_close_in_the_order_of_sites_and_heads_and_still_keep_exactly_so_many():
    equal = HeadMap({site: torch.ones(site.heads) for site in (ENC, DEC, CROSS)})
    closed = closed_by("weight-norm", equal, keep=4)
    assert closed.flat().tolist() == [True] * 7 + [False] * 4


def test_a_layer_without_any_importance_is_closed_first():
    given = HeadMap({ENC: torch.zeros(5), DEC: torch.full((3,), 1e-9), CROSS: torch.ones(3)})
    assert closed_by("importance", given, keep=6)[ENC].all()


@pytest.mark.parametrize("keep", [-1, 12])
def test_a_number_that_cannot_be_kept_is_refused(keep):
    with pytest.raises(ValueError, match=f"cannot keep {keep} of 11 heads; expected 0 to 11"):
        closed_by("importance", random_scores(), keep=keep)


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        closed_by("weight-norm", HeadMap({DEC: [1.0, float("nan"), 2.0]}), keep=1)


# ---------------------------------------------------------------- what the scores are


@pytest.mark.parametrize("name", SCORES)
def test_scores_have_every_head_and_are_the_same_twice_and_leave_the_model_as_it_was(dense, request_, name):
    before = {key: tensor.clone() for key, tensor in dense.translator.model.state_dict().items()}
    one = head_scores(name, request_)
    assert list(one) == list(find_sites(dense.translator.model))
    assert torch.isfinite(one.flat()).all()
    assert head_scores(name, replace(request_, fresh=True)) == one
    after = dense.translator.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


def test_each_score_is_what_its_function_makes_of_the_model(dense, request_):
    model = dense.translator.model
    by_hand = importance(model, dense.train_batches(), loss=dense.source.task.loss)
    assert head_scores("importance", request_) == by_hand
    assert head_scores("reverse", replace(request_, fresh=True)) == by_hand
    assert head_scores("weight-norm", request_) == weight_norm(model)
    assert head_scores("random", request_) == random_score(model, seed=3)
    assert head_scores("random", replace(request_, seed=4)) != random_score(model, seed=3)


def test_the_absolute_value_and_the_number_of_pairs_reach_the_gradient(dense, request_):
    model = dense.translator.model
    found = head_scores("importance", replace(request_, absolute="token", sentences=7))
    assert found == importance(model, dense.train_batches(7), loss=dense.source.task.loss, absolute="token")
    assert found != importance(model, dense.train_batches(), loss=dense.source.task.loss, absolute="token")
    assert found != importance(model, dense.train_batches(7), loss=dense.source.task.loss)


def test_the_pairs_that_are_read_are_drawn_from_all_of_the_runs(dense):
    train = dense.source.corpus.train
    drawn = sorted(random.Random(1).sample(range(len(train)), 7))
    by_hand = replace(dense.source.corpus, train=train.only(drawn, reason="not drawn"))
    own = [batch for batch in dense.source.data(by_hand).batches("train", 4000)]
    for ours, theirs in zip(dense.source.train_batches(7), own, strict=True):
        assert ours.source.equal(theirs.source)
        assert ours.target_out.equal(theirs.target_out)
    dense.source.config["text"] = dense.source.config["text"] | {"train_sentences": 5}
    assert sum(map(len, dense.source.train_batches(7))) == 5  # of the run's own pairs, which are no more


@pytest.mark.parametrize("name", ["importance", "reverse"])
def test_scores_with_heads_shut_are_those_of_the_model_without_them_and_are_not_kept(dense, request_, name):
    whole = head_scores("importance", request_)
    shut = whole.lowest(4)
    again = head_scores(name, replace(request_, closed=shut))
    assert again == importance(
        dense.translator.model, dense.train_batches(), loss=dense.source.task.loss, closed=shut
    )
    assert (again.flat()[shut.flat()] == 0).all()
    assert HeadMap.load(dense.folder / "scores/importance.json") == whole != again


def test_the_ablation_score_is_the_validation_bleu_lost_without_the_head(dense, request_):
    scores = head_scores("ablation", replace(request_, kinds=["cross"]))
    assert {site.kind for site in scores} == {"cross"}
    sources, references = dense.valid
    whole = score(dense.translator.translate(sources), references)["bleu"]
    site = list(scores)[-1]
    weight = find_sites(dense.translator.model)[site].out_proj.weight
    for head in range(site.heads):
        before = weight.detach().clone()
        with torch.no_grad():
            weight.unflatten(1, (site.heads, -1))[:, head] = 0
        without = score(dense.translator.translate(sources), references)["bleu"]
        with torch.no_grad():
            weight.copy_(before)
        assert scores[site][head] == pytest.approx(whole - without, abs=1e-9)


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
        ("reverse", {}, "importance"),
        ("weight-norm", {}, "weight-norm"),
        ("ablation", {}, "ablation"),
        ("random", {}, "random-seed1"),
        ("random", {"seed": 3}, "random-seed3"),
        ("importance", {"abs": "token"}, "importance-token"),
        ("reverse", {"abs": "batch"}, "importance-batch"),
        ("importance", {"sentences": 100, "recompute": True}, "importance-n100"),
        ("importance", {"normalise": "none"}, "importance"),
        ("ablation", {"normalise": "l2"}, "ablation"),
        ("ablation", {"abs": "token", "sentences": 7}, "ablation"),
        ("ablation", {"valid_sentences": 7, "test_sentences": 11}, "ablation-v7"),
        ("weight-norm", {"at_least": 1}, "weight-norm"),
        ("importance", {"kinds": ["cross"]}, "importance"),
        ("ablation", {"kinds": ["cross", "enc-self"]}, "ablation-enc-self+cross"),
        ("obs", {}, "obs-n1000"),
        ("obs", {"sentences": 100, "abs": "token"}, "obs-n100"),
        ("fisher", {}, "fisher-n1000"),
        ("fluctuation", {}, "fluctuation-n1000"),
        ("confidence", {}, "confidence-n1000"),
        ("lrp", {}, "lrp-n200"),
        ("lrp", {"sentences": 7}, "lrp-drawn7"),
        ("importance", {"sentences": 7}, "importance-drawn7"),
    ],
)
def test_the_file_names_all_that_the_scores_depend_on_and_no_more(dense, name, changes, file):
    config = PruneConfig("run", by=["importance"], **changes)
    dense.valid = dense.source.lines("valid", config.valid_sentences)
    assert score_file(name, score_request(dense, config, config.seed, quiet)) == file


def test_all_kinds_are_no_part_of_a_name():
    assert kinds_suffix(None) == kinds_suffix(["cross", "dec-self", "enc-self"]) == []
    assert kinds_suffix(["cross", "enc-self"]) == ["enc-self+cross"]
