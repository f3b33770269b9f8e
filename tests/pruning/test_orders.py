"""Orders of heads: what is closed when, by which scores, under which file name."""

from dataclasses import replace

import pytest
import torch

from configs import prune as settings
from configs.prune import PruneConfig
from data.parallel import Corpus, ParallelText
from gates import HeadMap, HeadSite, find_sites
from pruning.orders import ORDERS, close_lowest, curve_name, figure_name, kinds_name, scores_name, targets
from pruning.significance import score
from pruning.subject import Subject

CONFIG = PruneConfig("run")
ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 5), HeadSite.at("dec-self", 0, 3), HeadSite.at("cross", 1, 3)
SCORES = HeadMap({ENC: [5, 1, 9, 3, 7], DEC: [2, 8, 2], CROSS: [-1, 4, 11]})
OPEN = SCORES.map(lambda row: torch.zeros(len(row), dtype=torch.bool))


def shut(places: list[int]) -> HeadMap:
    return OPEN.like(torch.tensor([place in places for place in range(11)]))


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
    assert targets(heads, step) == counts


# ---------------------------------------------------------------- which


def test_the_lowest_are_closed_first_and_equal_scores_in_the_order_of_sites_and_heads():
    assert close_lowest(SCORES, OPEN, 5) == [8, 1, 5, 7, 3]
    assert close_lowest(SCORES, OPEN, 0) == []


def test_closed_heads_count_and_are_not_chosen_again():
    assert close_lowest(SCORES, shut([8, 2]), 5) == [1, 5, 7]
    assert close_lowest(SCORES, shut([8, 2]), 2) == []


def test_every_step_keeps_what_the_one_before_closed():
    everything = close_lowest(SCORES, OPEN, 11)
    assert sorted(everything) == list(range(11))
    for count in range(12):
        assert close_lowest(SCORES, OPEN, count) == everything[:count]


def test_no_layer_falls_below_the_heads_that_stay_open():
    chosen = close_lowest(SCORES, OPEN, 11, at_least=2)
    assert [int((~shut(chosen))[site].sum()) for site in SCORES] == [2, 2, 2]
    assert chosen == [8, 1, 5, 3, 0]
    assert close_lowest(SCORES, shut(chosen), 11, at_least=2) == []
    assert close_lowest(SCORES, OPEN, 11, at_least=5) == []


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        close_lowest(HeadMap({DEC: [1.0, float("nan"), 2.0]}), HeadMap({DEC: [False] * 3}), 1)


# ---------------------------------------------------------------- by what


def test_the_registry_has_the_orders_of_the_command_line():
    assert list(ORDERS) == settings.ORDERS
    assert {name for name, order in ORDERS.items() if order.gradient} == settings.USES_GRADIENT


def test_gradient_is_divided_by_the_norm_of_its_layer_and_others_are_not_unless_asked():
    given = HeadMap({HeadSite.at("enc-self", 0, 2): [3.0, 4.0], HeadSite.at("enc-self", 1, 2): [700.0, 2400.0]})
    assert ORDERS["gradient"].ranked(given, CONFIG) == given.l2_per_layer()
    assert ORDERS["gradient"].ranked(given, replace(CONFIG, normalise="none")) == given
    assert ORDERS["ablation"].ranked(given, CONFIG) == given
    assert ORDERS["ablation"].ranked(given, replace(CONFIG, normalise="l2")) == given.l2_per_layer()


def test_reverse_closes_last_what_gradient_closes_first():
    scores = HeadMap({ENC: [5, 1, 9, 3, 7], DEC: [2, 8, 6], CROSS: [13, 4, 11]})
    first = close_lowest(ORDERS["gradient"].ranked(scores, CONFIG), OPEN, 11)
    assert close_lowest(ORDERS["reverse"].ranked(scores, CONFIG), OPEN, 11) == first[::-1]


def quiet(text: str) -> None:
    pass


@pytest.fixture
def subject(make_subject) -> Subject:
    """The untrained model of conftest.py as prune.py's own subject; it has no text to train on."""
    made = make_subject()
    corpus = Corpus(ParallelText([], []), ParallelText(*made.valid), ParallelText(*made.test), "made up", "")
    return Subject(made.folder, made.translator, corpus, made.valid, made.test, {}, {})


@pytest.mark.parametrize("order", ["ablation", "random", "weight-norm"])
def test_scores_have_every_head_and_are_the_same_twice_and_leave_the_model_as_it_was(subject, order):
    before = {name: tensor.clone() for name, tensor in subject.translator.model.state_dict().items()}
    one = ORDERS[order].score(subject, CONFIG, 3, quiet)
    assert list(one) == list(find_sites(subject.translator.model))
    assert torch.isfinite(one.flat()).all()
    assert ORDERS[order].score(subject, CONFIG, 3, quiet) == one
    after = subject.translator.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_random_scores_follow_the_seed(subject):
    one, two = (ORDERS["random"].score(subject, CONFIG, seed, quiet) for seed in (1, 2))
    assert one != two
    assert (one.flat() < 1).all()
    assert (one.flat() >= 0).all()


def test_the_ablation_score_is_the_validation_bleu_lost_without_the_head(subject):
    scores = ORDERS["ablation"].score(subject, replace(CONFIG, kinds=["cross"]), 1, quiet)
    assert {site.kind for site in scores} == {"cross"}
    sources, references = subject.valid
    whole = score(subject.translator.translate(sources), references).bleu
    site = list(scores)[-1]
    weight = find_sites(subject.translator.model)[site].out_proj.weight
    for head in range(site.heads):
        before = weight.detach().clone()
        with torch.no_grad():
            weight.unflatten(1, (site.heads, -1))[:, head] = 0
        without = score(subject.translator.translate(sources), references).bleu
        with torch.no_grad():
            weight.copy_(before)
        assert scores[site][head] == pytest.approx(whole - without, abs=1e-9)


# ---------------------------------------------------------------- names of files


def test_the_usual_settings_leave_the_plain_name():
    for order in ORDERS:
        assert curve_name(order, CONFIG, CONFIG.kinds) == order
        assert figure_name(replace(CONFIG, by=[order])) == order
    assert scores_name("reverse", CONFIG) == "gradient"
    assert scores_name("random", CONFIG, 3) == "random-seed3"


@pytest.mark.parametrize(
    ("order", "changes", "name", "scores"),
    [
        ("gradient", {"abs": "token"}, "gradient-token", "gradient-token"),
        ("gradient", {"sentences": 100, "recompute": True}, "gradient-n100-recompute", "gradient-n100"),
        ("gradient", {"normalise": "none"}, "gradient-raw", "gradient"),
        ("gradient", {"normalise": "l2"}, "gradient", "gradient"),
        ("ablation", {"normalise": "l2", "beam": 5}, "ablation-l2-beam5", "ablation-beam5"),
        ("ablation", {"abs": "token", "recompute": True}, "ablation", "ablation"),
        ("ablation", {"valid_sentences": 7, "test_sentences": 11}, "ablation-v7-t11", "ablation-v7"),
        ("random", {"random_seeds": 3, "seed": 2, "step": 0.25}, "random-3seeds-from2-step0.25", "random"),
        ("weight-norm", {"at_least": 1}, "weight-norm-atleast1", "weight-norm"),
        ("gradient", {"kinds": ["cross"]}, "gradient-cross", "gradient"),
        ("ablation", {"kinds": ["cross", "enc-self"]}, "ablation-enc-self+cross", "ablation-enc-self+cross"),
    ],
)
def test_other_settings_are_in_the_name(order, changes, name, scores):
    config = replace(CONFIG, by=["gradient"], **changes)
    assert curve_name(order, config, config.kinds) == name
    assert scores_name(order, config) == scores


def test_the_figure_of_several_curves_names_them_all():
    config = replace(CONFIG, by=["gradient", "random"], beam=5)
    assert figure_name(config) == "gradient-beam5+random-beam5"
    assert figure_name(replace(config, each_kind=True)) == "gradient-beam5+random-beam5-by-kind"
    assert kinds_name(["cross", "dec-self", "enc-self"]) == []
