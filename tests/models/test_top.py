"""The largest numbers of a row, against a sort."""

import pytest
import torch

from headgates.models.top import WIDTH, top

SIZES = [1, WIDTH - 1, 3 * WIDTH, 7 * WIDTH, 7 * WIDTH + 1, 11 * WIDTH - 1, 8000]


def rows(n, count=5):
    return torch.randn(count, n, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", [1, 3, 10])
def test_they_are_the_first_of_a_sort(n, k):
    x, k = rows(n), min(k, n)
    values, positions = top(x, k)
    expected, places = x.sort(1, descending=True)
    assert torch.equal(values, expected[:, :k])
    assert torch.equal(positions, places[:, :k])


@pytest.mark.parametrize("n", SIZES)
def test_equal_numbers_come_each_from_its_own_place(n):
    x, k = rows(n).round(), min(10, n)  # some -3 to 3
    values, positions = top(x, k)
    assert torch.equal(values, x.sort(1, descending=True)[0][:, :k])
    assert torch.equal(x.gather(1, positions), values)
    assert all(len(set(row)) == k for row in positions.tolist())


@pytest.mark.parametrize("n", SIZES)
def test_a_single_one_is_the_first_of_equal_numbers(n):
    x = rows(n).round()
    expected = [row.index(max(row)) for row in x.tolist()]
    assert top(x, 1)[1][:, 0].tolist() == expected


def test_numbers_of_minus_infinity_fill_up_what_is_missing():
    x = torch.full((2, 8000), -torch.inf)
    x[0, 4711], x[0, 7999], x[1, 0] = 1.0, 2.0, -torch.inf
    values, positions = top(x, 3)
    assert values.tolist() == [[2.0, 1.0, -torch.inf], [-torch.inf] * 3]
    assert positions[0, :2].tolist() == [7999, 4711]
    assert all(len(set(row)) == 3 for row in positions.tolist())


def test_what_is_not_a_number_comes_first_as_in_torch():
    x = rows(8000)
    x[3, 17] = torch.nan
    assert top(x, 2)[1][3, 0] == 17


def test_no_rows_have_none():
    assert [tuple(each.shape) for each in top(torch.empty(0, 8000), 3)] == [(0, 3), (0, 3)]


def test_rows_that_lie_apart_in_memory_are_read_as_they_are():
    x = rows(8000).t().contiguous().t()
    assert torch.equal(top(x, 10)[1], x.sort(1, descending=True)[1][:, :10])
