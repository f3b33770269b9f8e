"""Which pairs of heads the page has."""

from headgates.report.causes import ON_PAGE, strongest_pairs


def test_the_pair_that_backs_each_other_up_most_is_on_the_page_however_many_share_a_cost():
    rows = [{"head": f"a{i}", "interaction": -float(100 - i)} for i in range(50)]
    rows += [{"head": "b", "interaction": 3.0}, {"head": "c", "interaction": 2.0}]
    shown = strongest_pairs(rows)
    assert shown == [*rows[:ON_PAGE], rows[50]]
    assert strongest_pairs(rows[:50]) == rows[:ON_PAGE]
    assert strongest_pairs(rows[50:]) == rows[50:]
