"""Rank correlations of scores, and roles against pruning, where the numbers are made up."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import Role
from headgates.explain.correlations import correlation_rows, survival_rows
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.records.related import MadeRun
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


def survival(*runs: tuple[str, list[str], int], alike: bool = True) -> tuple[list, list]:
    """`survival_rows` of a model with a positional head in the encoder and an aligned one; runs: what chose,
    the kinds that could close, and how many of them are open in each layer. alike: roles of all heads are
    looked for, not of the encoder's alone."""
    model = random_model()
    sites = [site for site in find_sites(model) if site.heads]
    asked = HeadMap({site: [0.0] * site.heads for site in sites})
    results = {
        "positions": AnalysisResult({"share": asked}),
        "alignment": AnalysisResult({"agreement": asked.select(["cross"])}),
    }
    if not alike:
        results = {"syntax": AnalysisResult({"gain": asked.select(["enc-self"])})}
    encoder, cross = sites[0], sites[-1]
    roles = [Role(encoder, 0, "positional", "", 1, 0, 0, ""), Role(cross, 1, "aligned", "", 1, 0, 0, "")]
    made: list[Any] = []
    for choose, kinds, number in runs:
        left = {
            site: torch.arange(site.heads).flip(0) < (number if site.kind in kinds else 99) for site in sites
        }
        recipe: Any = SimpleNamespace(label=choose, budget=SimpleNamespace(words="9 heads"), kinds=kinds)
        made.append(MadeRun(SimpleNamespace(), {}, recipe, SimpleNamespace(), HeadMap(left)))
    analysed: Any = SimpleNamespace(
        is_base=True,
        made_runs=made,
        predictor=SimpleNamespace(model=model),
        config=SimpleNamespace(attention=["enc-self", "dec-self", "cross"]),
        report=lambda line: None,
    )
    return survival_rows(analysed, results, roles)


def test_an_aligned_head_counts_as_no_specialised_one_whose_survival_is_tested():
    rows, tests = survival(("importance", ["enc-self", "cross"], 1))
    found = {row["role"]: row["at_first"] for row in rows if (row["run"], row["kind"]) == ("base", "all")}
    assert (found["positional"], found["aligned"]) == (1, 1)
    assert {row["kind"]: row["specialised"] for row in tests if row["within"] == "kind"} == {
        "all": 1,
        "enc-self": 1,
    }


def test_heads_of_which_no_role_was_looked_for_are_none_without_one():
    """Syntax and rare words are looked for in the encoder alone."""
    rows, _ = survival(("obs", ["enc-self", "cross"], 1), alike=False)
    assert {row["kind"] for row in rows} == {"all", "enc-self"}


def test_heads_that_no_run_could_close_are_no_survivors():
    """As in the paper, whose gates are on one kind at a time."""
    rows, _ = survival(("l0", ["enc-self"], 1), ("obs", ["enc-self", "cross"], 1))
    assert {row["kind"] for row in rows} == {"all", "enc-self"}
    found = {row["run"]: row["heads"] for row in rows if (row["kind"], row["role"]) == ("all", "positional")}
    assert found == {"base": 1, "l0, 9 heads": 0, "obs, 9 heads": 0}
    assert survival(("l0", ["enc-self"], 1), ("obs", ["cross"], 1)) == ([], [])
    assert survival(("plan", ["enc-ffn"], 1)) == survival() == ([], [])
