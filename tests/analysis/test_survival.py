"""Roles against pruning: counts by hand, the permutation test against all permutations."""

from itertools import combinations, product

import pytest
import torch

from headgates.analysis.survival import any_role, survive_longer, survivors
from headgates.gates import HeadMap, HeadSite

SITES = [
    HeadSite.at("enc-self", 0, 5),
    HeadSite.at("enc-self", 1, 3),
    HeadSite.at("dec-self", 0, 2),
    HeadSite.at("cross", 0, 3),
]
ROLES = {
    "positional": HeadMap(
        {SITES[0]: [True, True, False, False, False], SITES[1]: [True, False, False], SITES[2]: [True, False]}
    ),
    "rare": HeadMap({SITES[0]: [True, False, True, False, False], SITES[1]: [False] * 3}),
    "aligned": HeadMap({SITES[3]: [True, False, False]}),
}


def opens(*rows: list[int]) -> HeadMap:
    return HeadMap({site: torch.tensor(row, dtype=torch.bool) for site, row in zip(SITES, rows, strict=True)})


RUNS = {
    "strong": opens([1, 0, 0, 0, 0], [0, 0, 1], [0, 0], [1, 0, 0]),
    "weak": opens([1, 1, 1, 1, 0], [1, 0, 1], [1, 0], [1, 1, 0]),
    "middle": opens([1, 1, 0, 0, 1], [1, 0, 1], [0, 0], [1, 0, 0]),
}


def test_runs_come_with_more_open_heads_first_and_roles_are_counted_in_each():
    rows = survivors(RUNS, ROLES)
    assert len(rows) == 3 * 4 * 4
    of_all = [
        (row["run"], row["heads_open"]) for row in rows if (row["kind"], row["role"]) == ("all", "rare")
    ]
    assert of_all == [("weak", 9), ("middle", 6), ("strong", 3)]
    counts = {
        (row["run"], row["kind"], row["role"]): (row["heads"], row["at_first"], row["score"]) for row in rows
    }
    assert counts["weak", "all", "positional"] == (4, 4, 3.5)  # one is a rare-word head too
    assert counts["middle", "enc-self", "rare"] == (1, 2, 0.5)
    assert counts["middle", "dec-self", "positional"] == (0, 1, 0)
    assert counts["strong", "cross", "aligned"] == (1, 1, 1)
    assert counts["strong", "enc-self", "no role"] == (1, 4, 1)
    for run, kind in product(RUNS, ("all", "enc-self", "dec-self", "cross")):
        some = [row for row in rows if (row["run"], row["kind"]) == (run, kind)]
        assert sum(row["score"] for row in some) == pytest.approx(some[0]["heads_open"])


def test_only_the_kinds_asked_for_are_counted():
    rows = survivors(RUNS, ROLES, kinds=["cross", "dec-self"])
    assert {row["kind"] for row in rows} == {"all", "dec-self", "cross"}
    assert next(row for row in rows if (row["run"], row["kind"]) == ("weak", "all"))["heads_open"] == 3
    assert {row["kind"] for row in survive_longer(RUNS, any_role(ROLES), kinds=["cross"])} == {"all", "cross"}


def test_any_role_is_true_where_one_of_them_is():
    assert any_role(ROLES) == opens([1, 1, 1, 0, 0], [1, 0, 0], [1, 0], [1, 0, 0])


def by_hand(runs, specialised, groups) -> tuple[float, float, int]:
    """Difference, p and number of ways, by writing down all ways to deal out the labels within groups of
    (site, head)."""
    heads = [head for group in groups for head in group]
    lifetime = {(s, h): sum(bool(each[s][h]) for each in runs.values()) for s, h in heads}
    special = {(s, h) for s, h in heads if specialised[s][h]}

    def difference(chosen):
        inside = [lifetime[head] for head in heads if head in chosen]
        outside = [lifetime[head] for head in heads if head not in chosen]
        return sum(inside) / len(inside) - sum(outside) / len(outside)

    dealt = (combinations(group, sum(head in special for head in group)) for group in groups)
    ways = [difference(set().union(*way)) for way in product(*dealt)]
    observed, mean = difference(special), sum(ways) / len(ways)
    as_far = sum(abs(way - mean) >= abs(observed - mean) - 1e-9 for way in ways)
    return observed, as_far / len(ways), len(ways)


@pytest.mark.parametrize("within", ["kind", "layer"])
@pytest.mark.parametrize("seed", range(5))
def test_p_is_the_share_of_all_permutations(within, seed):
    torch.manual_seed(seed)
    *maps, specialised = [HeadMap({site: torch.rand(site.heads) < 0.5 for site in SITES}) for _ in range(4)]
    runs = {str(i): each for i, each in enumerate(maps)}
    for row in survive_longer(runs, specialised, within=within):
        groups = {}
        for site in SITES:
            if row["kind"] in ("all", site.kind):
                group = groups.setdefault(site.kind if within == "kind" else site, [])
                group += [(site, head) for head in range(site.heads)]
        heads = [head for group in groups.values() for head in group]
        count = sum(bool(specialised[s][h]) for s, h in heads)
        assert (row["specialised"], row["others"]) == (count, len(heads) - count)
        if not row["specialised"] or not row["others"]:
            assert row["difference"] is row["p_value"] is row["lifetime_specialised"] is None
            continue
        expected = by_hand(runs, specialised, list(groups.values()))
        assert (row["difference"], row["p_value"], row["ways"]) == pytest.approx(expected)
        assert row["lifetime_specialised"] - row["lifetime_others"] == pytest.approx(row["difference"])


SCORES = HeadMap({site: [0.5] * site.heads for site in SITES})
LESS = RUNS["weak"].select(["enc-self", "dec-self"])


@pytest.mark.parametrize(
    ("runs", "roles", "kinds", "message"),
    [
        ({"weak": SCORES}, ROLES, None, "'weak' must hold one bool for each of the 5 heads of"),
        (RUNS, {"rare": SCORES}, None, "'rare' must hold one bool"),
        (RUNS | {"b": LESS}, ROLES, None, r"'strong' and 'b' .*\(they differ in decoder\.0\.cross\)"),
        (
            RUNS,
            {"aligned": HeadMap({HeadSite.at("cross", 0, 7): [True] * 7})},
            None,
            r"3 heads of .*cross, got 7",
        ),
        ({}, ROLES, None, "got none"),
        ({"a": LESS}, ROLES, ["cross"], "no heads of the kinds cross"),
    ],
)
def test_maps_that_do_not_fit_are_refused(runs, roles, kinds, message):
    with pytest.raises(ValueError, match=message):
        survivors(runs, roles, kinds=kinds)


def test_an_unknown_group_and_scores_in_place_of_roles_are_refused():
    with pytest.raises(ValueError, match="unknown within 'layers'; did you mean 'layer'"):
        survive_longer(RUNS, ROLES["rare"], within="layers")
    with pytest.raises(ValueError, match="'specialised' must hold one bool"):
        survive_longer(RUNS, SCORES)
