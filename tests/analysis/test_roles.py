"""From found numbers to roles and families, on numbers that are made up."""

import re

import pytest

from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import FAMILIES, best_of_families, families, find_roles
from headgates.gates import HeadMap, HeadSite

ENC, CROSS = HeadSite.at("enc-self", 0, 3), HeadSite.at("cross", 1, 2)


def head_map(*rows: list) -> HeadMap:
    return HeadMap(dict(zip((ENC, CROSS), rows, strict=False)))


@pytest.fixture
def found() -> dict[str, AnalysisResult]:
    shares = head_map([0.95, 0.2, 0.05], [0.5, 0.92])
    offsets = [
        {"kind": site.kind, "offset": -1 if site == ENC else 0, "share": share}
        for site, row in shares.items()
        for share in row.tolist()
    ]
    known = {"label": "nsubj", "direction": "head->dependent", "offset": -1, "n": 17, "baseline": 0.6}
    asked = [known | {"site": ENC.name, "head": h, "accuracy": a} for h, a in enumerate((0.69, 0.7, None))]
    rare = {"two_rarest": head_map([0.1, 0.5, 0.8]), "rarest": head_map([0.0, 0.4, 0.7])}
    best = {"offset": head_map([-1, -1, -1], [0, 0]), "share": shares}
    agreement = {"agreement": HeadMap({CROSS: [0.55, 0.4]})}
    return {
        "positions": AnalysisResult(best, {}, {"offsets": offsets}),
        "syntax": AnalysisResult({"gain": head_map([0.0, 0.1, 0.0])}, {}, {"syntax": asked}),
        "rare": AnalysisResult(rare, {"chance_two_rarest": 0.45}),
        "alignment": AnalysisResult(agreement, {"baseline": 0.4, "baseline_offset": 0}),
    }


def test_every_analysis_gives_its_roles_with_score_and_baseline(found):
    roles = find_roles(found)
    assert [(role.site, role.head, role.role, role.score, round(role.baseline, 3)) for role in roles] == [
        (ENC, 0, "position -1", 0.95, 0.4),  # the mean of the kind's three heads
        (ENC, 1, "nsubj head->dependent", 0.7, 0.6),  # exactly ten points
        (ENC, 2, "rare words", 0.8, 0.45),  # head 1 has half, but blindly it would have nearly that
        (CROSS, 0, "aligned", 0.55, 0.4),
        (CROSS, 1, "position 0", 0.92, 0.71),
    ]
    for role, words in zip(
        roles, ("95% .* the token before; .* 40%", "60%", "70%", r"\(\+0\) has 40%"), strict=False
    ):
        assert re.search(words, role.words)


def test_a_closed_head_has_no_role_and_is_nobodys_best(found):
    closed = HeadMap({ENC: [True, False, True]})  # nothing is said of cross-attention: it is open
    roles = [(role.site, role.head) for role in find_roles(found, closed)]
    assert roles == [(ENC, 1), (CROSS, 0), (CROSS, 1)]
    assert {role.head for role in best_of_families(found, closed) if role.site == ENC} == {1}


def test_the_nearest_of_each_family_is_named_whether_it_is_a_role_or_not(found):
    found["rare"].head_maps["two_rarest"] = head_map([0.1, 0.3, 0.2])
    best = [
        (role.family, role.site, role.head, round(role.needed, 3), role.missing <= 0)
        for role in best_of_families(found)
    ]
    assert best == [
        ("positional", ENC, 0, 0.9, True),
        ("syntactic", ENC, 1, 0.7, True),
        ("rare words", ENC, 1, 0.55, False),
        ("aligned", CROSS, 0, 0.5, True),
    ]
    assert best_of_families({}) == []


def test_families_are_those_that_were_looked_for_with_no_more_roles_than_found(found):
    roles = find_roles(found)
    has = families(roles, found, [ENC, CROSS])
    heads = {name: row.flat().nonzero().flatten().tolist() for name, row in has.items()}
    assert heads == dict(zip(FAMILIES, ([0, 4], [1], [2], [3]), strict=True))
    assert list(families(roles, {"rare": found["rare"]}, [ENC])) == ["rare words"]
    # without known alignments no head can be called aligned
    assert families([], {"alignment": AnalysisResult({"entropy": head_map([1, 1, 1])})}, [ENC]) == {}


def test_of_a_heads_roles_the_one_farthest_above_its_baseline_comes_first(found):
    row = found["syntax"].tables["syntax"][0]
    for row["baseline"], first in ((0.6, "position -1"), (0.1, "nsubj head->dependent")):
        row["accuracy"] = 0.99
        roles = [role.role for role in find_roles(found) if (role.site, role.head) == (ENC, 0)]
        assert (roles[0], len(roles)) == (first, 2)
