"""HeadMap and HeadSite: names, order, exact counts and JSON."""

import pytest
import torch

from headgates.gates import HeadMap, HeadSite

ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 3), HeadSite.at("dec-self", 1, 2), HeadSite.at("cross", 0, 5)
MAP = HeadMap({CROSS: [0.5, 0.1, 0.5, 0.9, 0.1], ENC: [3.0, 0.1, -4.0], DEC: [0.0, 0.0]})


@pytest.mark.parametrize(
    "name", ["encoder.0.enc-self", "decoder.11.dec-self", "decoder.2.cross", "text.model.encoder.0.enc-ffn"]
)
def test_a_site_is_read_back_from_its_name(name):
    assert HeadSite.parse(name, 3).name == name


@pytest.mark.parametrize(
    "name", ["encoder.0.cross", "decoder.0.enc-self", "encoder.x.enc-self", "decoder.2", "cross"]
)
def test_a_name_that_is_no_site_is_refused(name):
    with pytest.raises(ValueError, match="expected a site such as"):
        HeadSite.parse(name, 3)


def test_sites_come_in_the_order_of_kinds_and_kinds_are_selected_by_name():
    assert list(MAP) == [ENC, DEC, CROSS]
    assert list(MAP.select("cross,enc-self")) == [ENC, CROSS]
    with pytest.raises(ValueError, match="did you mean 'dec-self'"):
        MAP.select(["decself"])
    with pytest.raises(ValueError, match="at least one kind"):
        MAP.select([])


def test_numbers_are_float64_on_the_cpu_without_gradient_and_bools_stay():
    row = HeadMap({ENC: torch.ones(3, requires_grad=True)})[ENC]
    assert (row.dtype, row.requires_grad) == (torch.float64, False)
    assert HeadMap({DEC: [0.1, 1 / 3]})[DEC].tolist() == [0.1, 1 / 3]  # never by way of float32
    bools = HeadMap({ENC: [True, False, True]})
    assert bools[ENC].dtype == torch.bool
    assert (~bools)[ENC].tolist() == [False, True, False]


def test_a_row_of_the_wrong_length_names_the_site_and_both_lengths():
    with pytest.raises(ValueError, match=r"encoder\.0\.enc-self has 3 heads: expected .*\(3,\), got \(2,\)"):
        HeadMap({ENC: [1.0, 2.0]})


def test_a_site_is_found_by_its_name_too_and_an_unknown_one_lists_the_known():
    assert MAP["decoder.0.cross"] is MAP[CROSS]
    assert HeadMap({site.name: row for site, row in MAP.items()}) == MAP
    with pytest.raises(KeyError, match=r"known: .*encoder\.0\.enc-self"):
        MAP["decoder.9.cross"]


def test_the_lowest_heads_are_chosen_the_earlier_of_equal_ones_and_sites_keep_their_least():
    assert MAP.lowest(5).to_json() == {
        "encoder.0.enc-self": [False, True, True],
        "decoder.1.dec-self": [True, True],
        "decoder.0.cross": [False, True, False, False, False],
    }
    assert [int(row.sum()) for row in MAP.lowest(9, at_least=2).values()] == [1, 0, 3]


def test_an_even_choice_takes_each_sites_own_lowest_though_others_are_lower():
    other = HeadSite.at("enc-self", 1, 3)
    scores = HeadMap({ENC: [5.0, 4.0, 6.0], other: [0.0, 1.0, 2.0]})
    assert scores.lowest(2, even=True).to_json() == {
        "encoder.0.enc-self": [False, True, False],
        "encoder.1.enc-self": [True, False, False],
    }
    with pytest.raises(
        ValueError, match=r"3 of 6 heads, even, would be 1\.50 of the 3 of encoder\.0\.enc-self"
    ):
        scores.lowest(3, even=True)


@pytest.mark.parametrize(
    ("scores", "k", "message"),
    [
        (MAP, 11, "expected 0 to 10"),
        (HeadMap({ENC: [0.0, float("nan"), 1.0]}), 1, "NaN or infinity"),
    ],
)
def test_numbers_and_scores_that_make_no_order_are_refused(scores, k, message):
    with pytest.raises(ValueError, match=message):
        scores.lowest(k)


def test_l2_per_layer_gives_every_site_norm_one_and_leaves_zeros():
    norms = [float(row.norm()) for row in MAP.l2_per_layer().values()]
    assert norms == pytest.approx([1.0, 0.0, 1.0])


def test_sums_are_by_kind_and_absent_kinds_are_left_out():
    two = HeadMap({ENC: [True, False, True], HeadSite.at("enc-self", 1, 3): [True, True, True]})
    assert two.by_kind() == {"enc-self": 5.0}
    assert (two.sum(), two.count(), two.heads_total) == (5.0, 5, 6)


def test_a_map_comes_back_from_its_file_to_the_last_bit(tmp_path):
    exact = HeadMap({ENC: torch.tensor([1 / 3, 1 / 3 + 1e-15, -1e-300], dtype=torch.float64)})
    for written in (MAP, MAP.map(lambda row: row > 0), exact):
        written.save(tmp_path / "map.json")
        assert HeadMap.load(tmp_path / "map.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["map.json"]  # no temporary file


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1, 2]",
        '{"encoder.0.enc-self": 3}',
        '{"here": [1]}',
        '{"encoder.0.enc-self": [null]}',
        '{"version": 2}',
    ],
)
def test_a_file_that_is_no_map_is_a_value_error(tmp_path, text):
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(ValueError, match="is not a HeadMap"):
        HeadMap.load(tmp_path / "map.json")
