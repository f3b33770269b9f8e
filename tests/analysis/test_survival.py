"""Roles against pruning: counts by hand, the permutation test against all permutations."""

from collections import defaultdict
from itertools import combinations, product
from statistics import fmean as mean

import pytest
import torch

from headgates.analysis.survival import any_role, survive_longer, survivors
from headgates.gates import HeadMap, HeadSite

SITES = [
    HeadSite.at(*each)
    for each in (("enc-self", 0, 5), ("enc-self", 1, 3), ("dec-self", 0, 2), ("cross", 0, 3))
]


def heads(*rows: str) -> HeadMap:
    """True at every 1, site by site."""
    return HeadMap({site: [each == "1" for each in row] for site, row in zip(SITES, rows, strict=False)})


ROLES = {
    "positional": heads("11000", "100", "10"),
    "rare": heads("10100", "000"),
    "aligned": heads("00000", "000", "00", "100"),
}
RUNS = {
    "strong": heads("10000", "001", "00", "100"),
    "weak": heads("11110", "101", "10", "110"),
    "middle": heads("11001", "101", "00", "100"),
}


def test_runs_come_with_more_open_heads_first_and_roles_are_counted_in_each():
    rows = survivors(RUNS, ROLES)
    found = {(row["run"], row["kind"], row["role"]): row for row in rows}
    assert len(found) == len(rows) == 3 * 4 * 4
    opened = dict.fromkeys((row["run"], row["heads_open"]) for row in rows if row["kind"] == "all")
    assert list(opened) == [("weak", 9), ("middle", 6), ("strong", 3)]
    for place, heads, at_first, score in [
        (("weak", "all", "positional"), 4, 4, 3.5),  # one is a rare-word head too
        (("middle", "enc-self", "rare"), 1, 2, 0.5),
        (("middle", "dec-self", "positional"), 0, 1, 0),
        (("strong", "cross", "aligned"), 1, 1, 1),
        (("strong", "enc-self", "no role"), 1, 4, 1),
    ]:
        row = found[place]
        assert (row["heads"], row["at_first"], row["score"]) == (heads, at_first, score), place
    for some in zip(*[iter(rows)] * 4, strict=True):  # of one run and kind
        assert sum(row["score"] for row in some) == pytest.approx(some[0]["heads_open"])


def test_any_role_is_true_where_one_of_them_is():
    assert any_role(ROLES) == heads("11100", "100", "10", "100")


def by_hand(runs, specialised, groups) -> tuple[float, float, int]:
    """Difference, p and number of ways, by writing down all ways to deal out the labels within groups of
    (site, head)."""
    every = {place for group in groups for place in group}
    lifetime = {(s, h): sum(bool(each[s][h]) for each in runs.values()) for s, h in every}
    special = {(s, h) for s, h in every if specialised[s][h]}

    def difference(chosen):
        return mean(lifetime[each] for each in chosen) - mean(lifetime[each] for each in every - chosen)

    dealt = (combinations(group, sum(place in special for place in group)) for group in groups)
    ways = [difference(set().union(*way)) for way in product(*dealt)]
    observed, middle = difference(special), mean(ways)
    as_far = mean(abs(way - middle) >= abs(observed - middle) - 1e-9 for way in ways)
    return observed, as_far, len(ways)


@pytest.mark.parametrize("within", ["kind", "layer"])
@pytest.mark.parametrize("seed", range(5))
def test_p_is_the_share_of_all_permutations(within, seed):
    torch.manual_seed(seed)
    *maps, specialised = [HeadMap({site: torch.rand(site.heads) < 0.5 for site in SITES}) for _ in range(4)]
    runs = dict(zip("abc", maps, strict=True))
    for row in survive_longer(runs, specialised, within=within):
        groups = defaultdict(list)
        for site in SITES:
            if row["kind"] in ("all", site.kind):
                groups[site.kind if within == "kind" else site] += [(site, h) for h in range(site.heads)]
        labels = [bool(specialised[s][h]) for group in groups.values() for s, h in group]
        assert (row["specialised"], row["others"]) == (sum(labels), len(labels) - sum(labels))
        if len({*labels}) < 2:
            assert row["difference"] is row["p_value"] is row["lifetime_specialised"] is None
            continue
        expected = by_hand(runs, specialised, list(groups.values()))
        assert (row["difference"], row["p_value"], row["ways"]) == pytest.approx(expected)
        assert row["lifetime_specialised"] - row["lifetime_others"] == pytest.approx(row["difference"])


SCORES = HeadMap({site: [0.5] * site.heads for site in SITES})
LESS = RUNS["weak"].select(["enc-self", "dec-self"])
WIDE = HeadMap({HeadSite.at("cross", 0, 7): [True] * 7})


@pytest.mark.parametrize(
    ("runs", "roles", "message"),
    [
        ({"weak": SCORES}, ROLES, "'weak' must hold one bool for each of the 5 heads of"),
        (RUNS, {"rare": SCORES}, "must hold one bool"),
        (RUNS | {"b": LESS}, ROLES, "do not have the same heads"),
        (RUNS, {"aligned": WIDE}, r"3 heads of .*cross, got 7"),
        ({}, ROLES, "got none"),
        ({"empty": HeadMap({})}, ROLES, "the runs have no heads of the kinds enc-self, dec-self, cross"),
    ],
)
def test_maps_that_do_not_fit_are_refused(runs, roles, message):
    with pytest.raises(ValueError, match=message):
        survive_longer(runs, next(iter(roles.values())))
    with pytest.raises(ValueError, match=message):
        survivors(runs, roles)


def test_a_misspelt_group_of_permutations_is_refused():
    with pytest.raises(ValueError, match="unknown within 'layers'; did you mean 'layer'"):
        survive_longer(RUNS, ROLES["positional"], within="layers")
