"""Rank correlations of scores, and roles against pruning, where the numbers are made up."""

from types import SimpleNamespace

import pytest

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import Role
from headgates.explain.correlations import correlation_rows, survival_rows
from headgates.gates import HeadMap, HeadSite, find_sites
from tests.worlds.one_by_one import random_model


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


def test_an_aligned_head_counts_as_no_specialised_one_whose_survival_is_tested():
    model = random_model()
    sites = [site for site in find_sites(model) if site.heads]
    asked = HeadMap({site: [0.0] * site.heads for site in sites})
    results = {
        "positions": AnalysisResult({"share": asked}),
        "alignment": AnalysisResult({"agreement": asked.select(["cross"])}),
    }
    encoder, cross = sites[0], sites[-1]
    roles = [Role(encoder, 0, "positional", "", 1, 0, 0, ""), Role(cross, 1, "aligned", "", 1, 0, 0, "")]
    recipe = SimpleNamespace(label="importance", budget=SimpleNamespace(words="9 heads"))
    run = SimpleNamespace(recipe=recipe, name="run", open=asked.map(lambda row: row == 0))
    analysed = SimpleNamespace(
        is_base=True,
        made_runs=[run],
        predictor=SimpleNamespace(model=model),
        config=SimpleNamespace(attention=["enc-self", "cross"]),
    )
    rows, tests = survival_rows(analysed, results, roles)
    found = {row["role"]: row["at_first"] for row in rows if (row["run"], row["kind"]) == ("base", "all")}
    assert (found["positional"], found["aligned"]) == (1, 1)
    assert {row["kind"]: row["specialised"] for row in tests if row["within"] == "kind"} == {
        "all": 1,
        "enc-self": 1,
    }
