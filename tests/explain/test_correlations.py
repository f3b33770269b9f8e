"""Rank correlations of scores, where the numbers are made up."""

import pytest

from headgates.explain.correlations import correlation_rows
from headgates.gates import HeadMap, HeadSite


def head_map(*rows: list) -> HeadMap:
    sites = HeadSite.at("enc-self", 0, 3), HeadSite.at("cross", 1, 2)
    return HeadMap(dict(zip(sites, rows, strict=False)))


def test_correlations_are_over_common_sites_and_left_out_where_there_is_none():
    scores = {
        "one": head_map([1, 2, 3], [4, 4]),
        "two": head_map([3, 5, 9], [0, 1]),
        "three": head_map([2, 1, 0]),
    }
    rows = correlation_rows(scores)
    found = {(row["first"], row["second"], row["kind"]): (row["heads"], row["spearman"]) for row in rows}
    assert found["one", "two", "enc-self"] == (3, pytest.approx(1))
    assert ("one", "two", "cross") not in found, "two heads have no correlation"
    assert found["one", "two", "all"][0] == 5
    assert found["one", "three", "all"][0] == 3
    assert found["two", "three", "enc-self"] == (3, pytest.approx(-1))
    assert ("one", "three", "cross") not in found
