"""HeadMap and HeadSite: names, order, exact counts and JSON."""

import json

import pytest
import torch

from headgates.gates import HeadMap, HeadSite

ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 3), HeadSite.at("dec-self", 1, 2), HeadSite.at("cross", 0, 5)


def a_map() -> HeadMap:
    return HeadMap({CROSS: [0.5, 0.1, 0.5, 0.9, 0.1], ENC: [3.0, 0.1, -4.0], DEC: [0.0, 0.0]})


@pytest.mark.parametrize("name", ["encoder.0.enc-self", "decoder.11.dec-self", "decoder.2.cross"])
def test_a_site_is_read_back_from_its_name(name):
    assert HeadSite.parse(name, 3).name == name


@pytest.mark.parametrize(
    "name", ["encoder.0.cross", "decoder.0.enc-self", "encoder.x.enc-self", "decoder.2", "cross"]
)
def test_a_name_that_is_no_site_is_refused(name):
    with pytest.raises(ValueError, match="expected a site such as"):
        HeadSite.parse(name, 3)


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'dec-self'"):
        a_map().select(["decself"])


def test_no_kind_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one kind"):
        a_map().select([])


def test_sites_come_in_the_order_of_kinds_whatever_order_they_were_given_in():
    assert [site.kind for site in a_map()] == ["enc-self", "dec-self", "cross"]


def test_numbers_become_float64_on_the_cpu_and_bools_stay():
    assert a_map()[ENC].dtype == torch.float64
    assert HeadMap({ENC: [True, False, True]})[ENC].dtype == torch.bool


def test_a_map_holds_no_gradient():
    assert not HeadMap({ENC: torch.ones(3, requires_grad=True)})[ENC].requires_grad


def test_a_row_of_the_wrong_length_names_the_site_and_both_lengths():
    with pytest.raises(ValueError, match=r"encoder\.0\.enc-self has 3 heads: expected .*\(3,\), got \(2,\)"):
        HeadMap({ENC: [1.0, 2.0]})


def test_a_site_is_found_by_its_name_too():
    assert a_map()["decoder.0.cross"].tolist() == [0.5, 0.1, 0.5, 0.9, 0.1]


def test_an_unknown_site_name_lists_the_known_ones():
    with pytest.raises(KeyError, match=r"known: .*encoder\.0\.enc-self"):
        a_map()["decoder.9.cross"]


@pytest.mark.parametrize("k", range(11))
def test_lowest_chooses_exactly_k_although_values_are_equal(k):
    assert a_map().lowest(k).count() == k


def test_lowest_chooses_what_a_plain_sort_would():
    heads = [(value, order) for order, value in enumerate(a_map().flat().tolist())]
    for k in range(len(heads) + 1):
        plain = {order for _, order in sorted(heads)[:k]}
        assert {i for i, chosen in enumerate(a_map().lowest(k).flat().tolist()) if chosen} == plain


@pytest.mark.parametrize("k", [-1, 11])
def test_lowest_refuses_to_choose_fewer_than_none_or_more_than_all(k):
    with pytest.raises(ValueError, match="expected 0 to 10"):
        a_map().lowest(k)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_lowest_refuses_scores_that_have_no_order(bad):
    with pytest.raises(ValueError, match="NaN or infinity"):
        HeadMap({ENC: [0.0, bad, 1.0]}).lowest(1)


def closed_one_by_one(scores: HeadMap, closed: HeadMap, count: int, at_least: int) -> list[int]:
    """The slow way: look for the lowest head that may close, close it, look again."""
    flat, shut, order = scores.flat().tolist(), closed.flat().tolist(), []
    ends = torch.tensor([site.heads for site in scores]).cumsum(0).tolist()
    while sum(shut) < count:
        may = []
        for start, end in zip([0, *ends], ends, strict=False):
            if shut[start:end].count(False) > at_least:
                may += [(flat[i], i) for i in range(start, end) if not shut[i]]
        if not may:
            break
        order.append(min(may)[1])
        shut[order[-1]] = True
    return order


@pytest.mark.parametrize("at_least", [0, 1, 2, 5])
def test_heads_close_one_by_one_from_the_lowest_and_layers_keep_their_least(at_least):
    generator = torch.Generator().manual_seed(0)
    for _ in range(23):
        scores = a_map().map(lambda row: torch.randint(4, row.shape, generator=generator))  # many are equal
        closed = scores.map(lambda row: torch.rand(row.shape, generator=generator) < 0.2)
        for count in range(11):
            order = closed_one_by_one(scores, closed, count, at_least)
            assert scores.closing_order(count, closed=closed, at_least=at_least) == order
            chosen = scores.lowest(count, closed=closed, at_least=at_least)
            assert chosen.flat().nonzero().flatten().tolist() == sorted(
                {*order, *closed.flat().nonzero().flatten().tolist()}
            )


def test_the_closing_order_of_fewer_heads_is_the_beginning_of_that_of_more():
    everything = a_map().closing_order(10)
    assert sorted(everything) == list(range(10))
    assert all(a_map().closing_order(count) == everything[:count] for count in range(11))


@pytest.mark.parametrize(
    "closed", [a_map(), a_map().select(["cross"]).map(lambda row: row > 0)], ids=["numbers", "other sites"]
)
def test_closed_heads_that_are_no_bools_of_the_same_sites_are_refused(closed):
    with pytest.raises(ValueError, match="expected `closed` to hold a bool for every head"):
        a_map().lowest(3, closed=closed)


def test_l2_per_layer_gives_every_site_norm_one_and_leaves_zeros():
    norms = {site.name: float(row.norm()) for site, row in a_map().l2_per_layer().items()}
    assert norms == pytest.approx(
        {"encoder.0.enc-self": 1.0, "decoder.1.dec-self": 0.0, "decoder.0.cross": 1.0}
    )


def test_by_kind_sums_the_layers_of_a_kind_and_leaves_absent_kinds_out():
    two = HeadMap({ENC: [True, False, True], HeadSite.at("enc-self", 1, 3): [True, True, True]})
    assert two.by_kind() == {"enc-self": 5.0}


def test_select_keeps_the_named_kinds_alone():
    assert list(a_map().select(["cross", "enc-self"])) == [ENC, CROSS]


def test_like_is_the_inverse_of_flat():
    assert a_map().like(a_map().flat()) == a_map()


def test_inverting_swaps_open_and_closed():
    assert (~HeadMap({ENC: [True, False, True]}))[ENC].tolist() == [False, True, False]


def test_maps_over_different_sites_are_not_equal():
    assert a_map() != a_map().select(["cross"])


def test_a_map_comes_back_from_its_file(tmp_path):
    for written in (a_map(), a_map().map(lambda row: row > 0)):
        written.save(tmp_path / "map.json")
        assert HeadMap.load(tmp_path / "map.json") == written


def test_numbers_come_back_from_their_file_to_the_last_bit(tmp_path):
    written = HeadMap({ENC: torch.tensor([1 / 3, 1 / 3 + 1e-15, -1e-300], dtype=torch.float64)})
    written.save(tmp_path / "map.json")
    assert HeadMap.load(tmp_path / "map.json") == written


def test_a_list_of_numbers_is_not_rounded_to_float32():
    assert HeadMap({DEC: [0.1, 1 / 3]})[DEC].tolist() == [0.1, 1 / 3]


def test_saving_leaves_no_temporary_file(tmp_path):
    a_map().save(tmp_path / "map.json")
    assert [path.name for path in tmp_path.iterdir()] == ["map.json"]


@pytest.mark.parametrize(
    "text",
    ["{", "[1, 2]", '{"encoder.0.enc-self": 3}', '{"here": [1.0]}', '{"encoder.0.enc-self": [null]}', "\x00"],
)
def test_a_file_that_is_no_map_is_a_value_error(tmp_path, text):
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a HeadMap|expected a"):
        HeadMap.load(tmp_path / "map.json")


def test_its_json_is_a_list_of_numbers_a_site():
    assert json.loads(json.dumps(a_map().to_json()))["decoder.1.dec-self"] == [0.0, 0.0]
