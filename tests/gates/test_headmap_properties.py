"""HeadMap arithmetic on any sites and numbers, against plain dicts of lists."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headgates.gates import KINDS, HeadMap, HeadSite

many = settings(max_examples=60, deadline=None, derandomize=True, database=None)
PLACES = st.tuples(st.sampled_from(KINDS), st.integers(0, 12))
NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 9)) | st.sampled_from(
    [0.0, -0.0, 1.0, 1.0]
)  # squares of 1e-160 are 0
Plain = dict[tuple[str, int], list]  # (kind, layer) -> the values of its heads


def plain_maps(values, smallest=0):
    return st.dictionaries(PLACES, st.lists(values, min_size=1, max_size=5), min_size=smallest, max_size=7)


def head_map(plain: Plain) -> HeadMap:
    return HeadMap({HeadSite.at(kind, layer, len(row)): row for (kind, layer), row in plain.items()})


def in_order(plain: Plain) -> list[tuple[tuple[str, int], list]]:
    return sorted(
        plain.items(), key=lambda item: (["enc-self", "dec-self", "cross"].index(item[0][0]), item[0][1])
    )


def flat(plain: Plain) -> list:
    return [value for _, row in in_order(plain) for value in row]


def as_plain(found: HeadMap) -> Plain:
    return {(site.kind, site.layer): row.tolist() for site, row in found.items()}


@many
@given(plain_maps(NUMBERS))
def test_sums_and_counts_are_those_of_the_lists(plain):
    found, values = head_map(plain), flat(plain)
    assert found.flat().tolist() == values
    assert found.heads_total == len(values)
    assert found.sum() == pytest.approx(math.fsum(values), rel=1e-12, abs=1e-9)
    assert found.count() == sum(value != 0 for value in values)
    by_kind: dict[str, float] = {}
    for (kind, _), row in in_order(plain):
        by_kind[kind] = by_kind.get(kind, 0.0) + math.fsum(row)
    assert found.by_kind() == pytest.approx(by_kind, rel=1e-12, abs=1e-9)
    assert list(found.by_site().values()) == pytest.approx(
        [math.fsum(row) for _, row in in_order(plain)], rel=1e-12, abs=1e-9
    )


@many
@given(plain_maps(NUMBERS), st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
def test_changing_choosing_and_flattening_are_those_of_the_lists(plain, kinds):
    found = head_map(plain)
    assert as_plain(found.map(lambda row: 2 * row)) == {
        place: [2 * value for value in row] for place, row in plain.items()
    }
    assert as_plain(found.select(kinds)) == {place: row for place, row in plain.items() if place[0] in kinds}
    assert found.like(found.flat()) == found
    assert [row["value"] for row in found.rows()] == flat(plain)
    norms = {place: math.hypot(*row) for place, row in plain.items()}
    for place, row in as_plain(found.l2_per_layer()).items():
        assert row == pytest.approx(
            [value / max(norms[place], 1e-300) for value in plain[place]], rel=1e-9, abs=1e-12
        )


@many
@given(plain_maps(NUMBERS) | plain_maps(st.booleans()))
def test_a_map_is_what_its_json_holds(plain):
    found = head_map(plain)
    again = HeadMap.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert as_plain(again) == plain


@many
@given(plain_maps(st.booleans()))
def test_turning_bools_round_twice_gives_them_back(plain):
    found = head_map(plain)
    assert as_plain(~found) == {place: [not value for value in row] for place, row in plain.items()}
    assert ~~found == found


def closed_slowly(plain: Plain, closed: Plain, k: int, at_least: int) -> list[int]:
    """The positions that close, by looking for the lowest value again and again."""
    heads = [
        (place, value, shut)
        for place, row in in_order(plain)
        for value, shut in zip(row, closed[place], strict=True)
    ]
    shut, order = [shut for *_, shut in heads], []
    while sum(shut) < k:
        left = {
            place: sum(not s for (p, *_), s in zip(heads, shut, strict=True) if p == place) for place in plain
        }
        free = [i for i, (place, *_) in enumerate(heads) if not shut[i] and left[place] > at_least]
        if not free:
            break
        order.append(min(free, key=lambda i: (heads[i][1], i)))
        shut[order[-1]] = True
    return order


@many
@given(plain_maps(st.integers(-3, 3).map(float), smallest=1), st.data())
def test_the_lowest_heads_close_one_after_another(plain, data):
    found, total = head_map(plain), len(flat(plain))
    k, at_least = data.draw(st.integers(0, total)), data.draw(st.integers(0, 3))
    closed = {place: [data.draw(st.integers(0, 3)) == 0 for _ in row] for place, row in plain.items()}
    order = found.closing_order(k, closed=head_map(closed), at_least=at_least)
    assert order == closed_slowly(plain, closed, k, at_least)
    lowest = found.lowest(k, closed=head_map(closed), at_least=at_least).flat().tolist()
    assert lowest == [shut or i in order for i, shut in enumerate(flat(closed))]
    assert found.lowest(k).count() == k


@many
@given(plain_maps(NUMBERS, smallest=1), st.data())
def test_maps_are_equal_where_the_lists_are(plain, data):
    place = data.draw(st.sampled_from(sorted(plain)))
    other = {**plain, place: [*plain[place][:-1], plain[place][-1] + 1.0]}
    assert head_map(plain) == head_map(dict(reversed(plain.items())))
    assert head_map(plain) != head_map(other)
    assert head_map(plain) != head_map({**plain, place: [*plain[place], 0.0]})
    assert torch.equal(
        head_map(plain)[HeadSite.at(*place, len(plain[place]))],
        torch.tensor(plain[place], dtype=torch.float64),
    )
