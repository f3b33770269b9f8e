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
    assert [row["run"] for row in rows if (row["kind"], row["role"]) == ("all", "rare")] == [
        "weak",
        "middle",
        "strong",
    ]
    assert [row["heads_open"] for row in rows if (row["kind"], row["role"]) == ("all", "rare")] == [9, 6, 3]
    counts = {
        (row["run"], row["kind"], row["role"]): (row["heads"], row["at_first"], row["score"]) for row in rows
    }
    assert counts["weak", "all", "positional"] == (4, 4, 3.5)  # one is a rare-word head too
    assert counts["weak", "enc-self", "rare"] == (2, 2, 1.5)
    assert counts["middle", "enc-self", "rare"] == (1, 2, 0.5)
    assert counts["middle", "dec-self", "positional"] == (0, 1, 0)
    assert counts["strong", "cross", "aligned"] == (1, 1, 1)
    assert counts["strong", "enc-self", "aligned"] == (0, 0, 0)
    assert counts["strong", "enc-self", "no role"] == (1, 4, 1)
    assert len(rows) == 3 * 4 * 4


def test_scores_add_up_to_the_open_heads_of_a_kind():
    rows = survivors(RUNS, ROLES)
    for run, kind in product(RUNS, ("all", "enc-self", "dec-self", "cross")):
        some = [row for row in rows if (row["run"], row["kind"]) == (run, kind)]
        assert sum(row["score"] for row in some) == pytest.approx(some[0]["heads_open"])


def test_only_the_kinds_asked_for_are_counted():
    rows = survivors(RUNS, ROLES, kinds=["cross", "dec-self"])
    assert {row["kind"] for row in rows} == {"all", "dec-self", "cross"}
    assert next(row for row in rows if (row["run"], row["kind"]) == ("weak", "all"))["heads_open"] == 3
    encoder_runs = {run: heads.select(["enc-self"]) for run, heads in RUNS.items()}
    assert {row["kind"] for row in survivors(encoder_runs, ROLES)} == {"all", "enc-self"}


def test_any_role_is_true_where_one_of_them_is():
    assert any_role(ROLES).to_json() == {
        "encoder.0.enc-self": [True, True, True, False, False],
        "encoder.1.enc-self": [True, False, False],
        "decoder.0.dec-self": [True, False],
        "decoder.0.cross": [True, False, False],
    }


def by_hand(runs, specialised, groups) -> tuple[float, float, int]:
    """Difference, p and number of ways, by writing down all ways to deal out the labels within groups of
    (site, head)."""
    lifetime = {
        head: sum(bool(heads[head[0]][head[1]]) for heads in runs.values())
        for group in groups
        for head in group
    }
    special = {head for head in lifetime if specialised[head[0]][head[1]]}

    def difference(chosen):
        inside = [lifetime[head] for head in lifetime if head in chosen]
        outside = [lifetime[head] for head in lifetime if head not in chosen]
        return sum(inside) / len(inside) - sum(outside) / len(outside)

    ways = [
        set().union(*way)
        for way in product(*(combinations(group, sum(head in special for head in group)) for group in groups))
    ]
    observed = difference(special)
    mean = sum(difference(way) for way in ways) / len(ways)
    return (
        observed,
        sum(abs(difference(way) - mean) >= abs(observed - mean) - 1e-9 for way in ways) / len(ways),
        len(ways),
    )


@pytest.mark.parametrize("within", ["kind", "layer"])
@pytest.mark.parametrize("seed", range(7))
def test_p_is_the_share_of_all_permutations(within, seed):
    generator = torch.Generator().manual_seed(seed)

    def random_map():
        return HeadMap({site: torch.rand(site.heads, generator=generator) < 0.5 for site in SITES})

    runs = {str(i): random_map() for i in range(3)}
    specialised = random_map()
    for row in survive_longer(runs, specialised, within=within):
        heads = {
            site: [(site, h) for h in range(site.heads)]
            for site in SITES
            if row["kind"] in ("all", site.kind)
        }
        groups = list(heads.values())
        if within == "kind":
            by_kind = {}
            for site, group in heads.items():
                by_kind.setdefault(site.kind, []).extend(group)
            groups = list(by_kind.values())
        count = sum(int(specialised[site].sum()) for site in heads)
        assert (row["specialised"], row["others"]) == (count, sum(site.heads for site in heads) - count)
        if not row["specialised"] or not row["others"]:
            assert row["difference"] is row["p_value"] is row["lifetime_specialised"] is None
            continue
        difference, p, ways = by_hand(runs, specialised, groups)
        assert row["difference"] == pytest.approx(difference)
        assert row["lifetime_specialised"] - row["lifetime_others"] == pytest.approx(difference)
        assert row["p_value"] == pytest.approx(p)
        assert row["ways"] == ways


def test_within_layer_a_surviving_layer_is_no_evidence():
    first, second = HeadSite.at("enc-self", 0, 3), HeadSite.at("enc-self", 1, 3)
    runs = {str(i): HeadMap({first: [False] * 3, second: [True] * 3}) for i in range(3)}
    specialised = HeadMap({first: [False] * 3, second: [True, True, False]})
    in_kind, in_layer = (
        survive_longer(runs, specialised, within=within)[0]["p_value"] for within in ("kind", "layer")
    )
    assert in_kind == pytest.approx(2 / 5)
    assert in_layer == pytest.approx(1)


def test_maps_that_do_not_fit_are_refused():
    scores = HeadMap({site: [0.5] * site.heads for site in SITES})
    with pytest.raises(
        ValueError, match=r"'weak' must hold one bool for each head; encoder\.0\.enc-self has numbers"
    ):
        survivors({"weak": scores}, ROLES)
    with pytest.raises(ValueError, match="'rare' must hold one bool for each head"):
        survivors(RUNS, {"rare": scores})
    with pytest.raises(ValueError, match="role 'rare' must hold one bool for each head"):
        any_role({"rare": scores})
    with pytest.raises(
        ValueError,
        match=r"'strong' and 'other' do not have the same heads \(they differ in decoder\.0\.cross\)",
    ):
        survivors(
            RUNS | {"other": HeadMap({site: row for site, row in RUNS["weak"].items() if site != SITES[3]})},
            ROLES,
        )
    other_model = HeadMap({HeadSite.at("cross", 0, 7): [True] * 7})
    with pytest.raises(ValueError, match=r"decoder\.0\.cross has 7 heads in 'aligned', but 3 in the runs"):
        survivors(RUNS, {"aligned": other_model})
    with pytest.raises(ValueError, match=r"decoder\.0\.cross has 7 heads in 'specialised'"):
        survive_longer(RUNS, other_model)
    with pytest.raises(ValueError, match="got none"):
        survivors({}, ROLES)
    with pytest.raises(ValueError, match="no heads of the kinds dec-self"):
        survive_longer({"a": RUNS["weak"].select(["cross"])}, ROLES["rare"], kinds=["dec-self"])
    with pytest.raises(ValueError, match="unknown within 'layers'; known: kind, layer"):
        survive_longer(RUNS, ROLES["rare"], within="layers")
    with pytest.raises(ValueError, match="'no role' stands for heads without a role"):
        survivors(RUNS, {"no role": ROLES["rare"]})
