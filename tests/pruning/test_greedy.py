"""Greedy pruning: exactly so many heads, the lowest first."""

import pytest
import torch

from gates import HeadMap, HeadSite
from pruning.greedy import lowest_closed

ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 5), HeadSite.at("dec-self", 0, 3), HeadSite.at("cross", 1, 3)


def scores(seed: int = 0) -> HeadMap:
    generator = torch.Generator().manual_seed(seed)
    return HeadMap({site: torch.rand(site.heads, generator=generator) * 10**site.layer for site in (ENC, DEC, CROSS)})


@pytest.mark.parametrize("l2_per_layer", [True, False])
def test_exactly_keep_heads_stay_open(l2_per_layer):
    for keep in range(12):
        closed = lowest_closed(scores(), keep=keep, l2_per_layer=l2_per_layer)
        assert (~closed).count() == keep
        assert closed.heads_total == 11


def test_every_closed_head_scores_no_more_than_every_open_one():
    closed = lowest_closed(scores(), keep=4, l2_per_layer=False)
    flat = scores().flat()
    assert flat[closed.flat()].max() <= flat[~closed.flat()].min()


def test_l2_per_layer_divides_each_layer_by_the_norm_of_its_scores():
    # raw, the first layer is a hundredth of the second; normalised (0.6, 0.8) against (0.28, 0.96)
    small, large = HeadSite.at("enc-self", 0, 2), HeadSite.at("enc-self", 1, 2)
    given = HeadMap({small: [3.0, 4.0], large: [700.0, 2400.0]})
    assert lowest_closed(given, keep=2, l2_per_layer=False)[small].tolist() == [True, True]
    normalised = lowest_closed(given, keep=2, l2_per_layer=True)
    assert normalised[small].tolist() == [True, False]
    assert normalised[large].tolist() == [True, False]


def test_equal_scores_close_in_the_order_of_sites_and_heads_and_still_keep_exactly_so_many():
    equal = HeadMap({site: torch.ones(site.heads) for site in (ENC, DEC, CROSS)})
    closed = lowest_closed(equal, keep=4, l2_per_layer=False)
    assert closed.flat().tolist() == [True] * 7 + [False] * 4


def test_a_layer_without_any_importance_is_closed_first():
    given = HeadMap({ENC: torch.zeros(5), DEC: torch.full((3,), 1e-9), CROSS: torch.ones(3)})
    assert lowest_closed(given, keep=6, l2_per_layer=True)[ENC].all()


@pytest.mark.parametrize("keep", [-1, 12])
def test_a_number_that_cannot_be_kept_is_refused(keep):
    with pytest.raises(ValueError, match=f"cannot keep {keep} of 11 heads; expected 0 to 11"):
        lowest_closed(scores(), keep=keep, l2_per_layer=True)


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        lowest_closed(HeadMap({DEC: [1.0, float("nan"), 2.0]}), keep=1, l2_per_layer=False)
