"""From found numbers to roles, letters and families, on numbers that are made up."""

import pytest

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import FAMILIES, best_of_families, families, find_roles
from headgates.gates import HeadMap, HeadSite
from headgates.workbench.correlations import correlation_rows

ENC, CROSS = HeadSite.at("enc-self", 0, 3), HeadSite.at("cross", 1, 2)


def head_map(*rows: list) -> HeadMap:
    return HeadMap(dict(zip((ENC, CROSS), rows, strict=False)))


def offset_row(site: HeadSite, head: int, offset: int, share: float) -> dict:
    return {
        "site": site.name,
        "kind": site.kind,
        "layer": site.layer,
        "head": head,
        "offset": offset,
        "share": share,
    }


def syntax_row(head: int, accuracy: float | None) -> dict:
    known = {
        "label": "nsubj",
        "direction": "head->dependent",
        "site": ENC.name,
        "head": head,
        "offset": -1,
        "n": 17,
    }
    return {**known, "accuracy": accuracy, "baseline": None if accuracy is None else 0.6}


@pytest.fixture
def found() -> dict[str, AnalysisResult]:
    offsets = [offset_row(ENC, head, -1, share) for head, share in enumerate((0.95, 0.2, 0.05))]
    offsets += [offset_row(CROSS, head, 0, share) for head, share in enumerate((0.5, 0.92))]
    best = {"offset": head_map([-1, -1, -1], [0, 0]), "share": head_map([0.95, 0.2, 0.05], [0.5, 0.92])}
    asked = [syntax_row(0, 0.69), syntax_row(1, 0.7), syntax_row(2, None)]
    return {
        "positions": AnalysisResult(best, {}, {"offsets": offsets}),
        "syntax": AnalysisResult({"gain": head_map([0.0, 0.1, 0.0])}, {}, {"syntax": asked}),
        "rare": AnalysisResult(
            {"two_rarest": head_map([0.1, 0.5, 0.8]), "rarest": head_map([0.0, 0.4, 0.7])},
            {"chance_two_rarest": 0.45},
        ),
        "alignment": AnalysisResult(
            {"agreement": HeadMap({CROSS: [0.55, 0.4]})}, {"baseline": 0.4, "baseline_offset": 0}
        ),
    }


def test_every_analysis_gives_its_roles_with_score_and_baseline(found):
    roles = [
        (role.site, role.head, role.role, role.score, round(role.baseline, 3)) for role in find_roles(found)
    ]
    assert roles == [
        (ENC, 0, "position -1", 0.95, 0.4),  # the mean of the kind's three heads
        (ENC, 1, "nsubj head->dependent", 0.7, 0.6),  # exactly ten points
        (ENC, 2, "rare words", 0.8, 0.45),  # head 1 has half, but blindly it would have nearly that
        (CROSS, 0, "aligned", 0.55, 0.4),
        (CROSS, 1, "position 0", 0.92, 0.71),
    ]


def test_a_closed_head_has_no_role_and_is_nobodys_best(found):
    closed = HeadMap({ENC: [True, False, True]})  # nothing is said of cross-attention: it is open
    assert [(role.site, role.head) for role in find_roles(found, closed)] == [
        (ENC, 1),
        (CROSS, 0),
        (CROSS, 1),
    ]
    assert {role.head for role in best_of_families(found, closed) if role.site == ENC} == {1}
    assert find_roles(found, HeadMap({})) == find_roles(found)


def test_words_of_a_role_say_what_the_numbers_are(found):
    said = {role.role: role.words for role in find_roles(found)}
    assert (
        said["position -1"]
        == "95% of its largest weights are at the token before; enc-self heads have 40% there on average"
    )
    assert "the best fixed offset (-1) is right 60% of the time, on 17 words" in said["nsubj head->dependent"]


def test_the_nearest_of_each_family_is_named_whether_it_is_a_role_or_not(found):
    maps = {"two_rarest": head_map([0.1, 0.3, 0.2]), "rarest": head_map([0.0, 0.2, 0.1])}
    found["rare"] = AnalysisResult(maps, {"chance_two_rarest": 0.45})
    best = {
        role.family: (role.site, role.head, round(role.needed, 3), role.missing <= 0)
        for role in best_of_families(found)
    }
    assert best == {
        "positional": (ENC, 0, 0.9, True),
        "syntactic": (ENC, 1, 0.7, True),
        "rare words": (ENC, 1, 0.55, False),
        "aligned": (CROSS, 0, 0.5, True),
    }
    assert best_of_families({}) == []


def test_families_are_those_that_were_looked_for_with_no_more_roles_than_found(found):
    roles = find_roles(found)
    has = families(roles, found, [ENC, CROSS])
    assert list(has) == list(FAMILIES)
    assert {name: (row[ENC].tolist(), row[CROSS].tolist()) for name, row in has.items()} == {
        "positional": ([True, False, False], [False, True]),
        "syntactic": ([False, True, False], [False, False]),
        "rare words": ([False, False, True], [False, False]),
        "aligned": ([False, False, False], [True, False]),
    }
    assert list(families(roles, {"rare": found["rare"]}, [ENC])) == ["rare words"]
    real_text = {"alignment": AnalysisResult({"entropy": head_map([1, 1, 1], [1, 1])})}
    assert families([], real_text, [ENC]) == {}  # without known alignments no head can be called aligned


def test_of_a_heads_roles_the_one_farthest_above_its_baseline_comes_first(found):
    found["syntax"].tables["syntax"][0]["accuracy"] = 0.99
    first, second = [role.role for role in find_roles(found) if (role.site, role.head) == (ENC, 0)]
    assert (first, second) == ("position -1", "nsubj head->dependent")
    found["syntax"].tables["syntax"][0]["baseline"] = 0.1
    assert [role.role for role in find_roles(found)][:2] == ["nsubj head->dependent", "position -1"]


def test_correlations_are_over_common_sites_and_none_where_there_is_none():
    scores = {
        "one": head_map([1, 2, 3], [4, 4]),
        "two": head_map([3, 5, 9], [0, 1]),
        "three": HeadMap({ENC: [2, 1, 0]}),
    }
    rows = {(row["first"], row["second"], row["kind"]): row for row in correlation_rows(scores)}
    assert rows["one", "two", "enc-self"]["spearman"] == pytest.approx(1)
    assert rows["one", "two", "all"]["heads"] == 5
    assert rows["one", "two", "cross"] == {
        "first": "one",
        "second": "two",
        "kind": "cross",
        "heads": 2,
        "spearman": None,
        "p_value": None,
    }
    assert rows["one", "three", "all"]["heads"] == 3
    assert rows["two", "three", "enc-self"]["spearman"] == pytest.approx(-1)
    assert ("one", "three", "cross") not in rows
