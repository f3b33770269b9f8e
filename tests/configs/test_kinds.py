"""Numbers of heads for each kind of attention: what is read, and what is refused."""

import pytest

from headgates.configs.kinds import KINDS, parse_budget
from headgates.gates import headmap


def test_kinds_are_those_of_head_maps():
    assert tuple(KINDS) == headmap.KINDS


def test_numbers_come_in_the_houses_order():
    found = parse_budget(["cross=12", "enc-self = 4", "dec-self=0"])
    assert list(found.items()) == [("enc-self", 4), ("dec-self", 0), ("cross", 12)]
    assert parse_budget([]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cross", "expected KIND=HEADS such as cross=12, got 'cross'"),
        (
            "cros=1",
            r"unknown kind of attention 'cros' \(did you mean 'cross'\?\); expected enc-self, dec-self, "
            r"cross",
        ),
        ("cross=1,cross=2", "cross is given twice, as 1 and 2; keep one"),
        ("cross=-1", "cross: expected a whole number of heads, at least 0, got '-1'"),
    ],
)
def test_what_is_no_budget_is_one_clear_error(text, message):
    with pytest.raises(ValueError, match=f"--heads: {message}"):
        parse_budget(text.split(","))
