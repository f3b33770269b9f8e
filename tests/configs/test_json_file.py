"""JSON in a type: what fits comes back in it, anything else is named by its place."""

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

import pytest

from headgates.configs.json_file import load_json, parsed


@dataclass(frozen=True)
class Part:
    widths: tuple[int, ...]
    ends: tuple[float, float] | None = None


class Whole(TypedDict):
    parts: list[Part]
    rows: dict[str, list[float]]
    done: NotRequired[bool | None]


PART = {"widths": [1, 2], "ends": [0, 1.5], "later": 3}
WHOLE = {"parts": [PART], "rows": {"a": [1, 2.5]}, "other": [{}]}


def test_an_object_is_anything_and_a_literal_one_of_its_values():
    assert parsed({"a": [1]}, dict[str, object]) == {"a": [1]}
    assert parsed("ddp", Literal["ddp", "fsdp"]) == "ddp"
    with pytest.raises(ValueError, match="mode is 1, expected one of ddp, fsdp"):
        parsed(1, Literal["ddp", "fsdp"], "mode")


def test_what_fits_comes_back_with_tuples_dataclasses_and_unknown_keys():
    expected = {**WHOLE, "parts": [Part((1, 2), (0, 1.5))]}
    assert parsed(WHOLE, Whole) == expected
    assert parsed(WHOLE | {"done": None}, Whole)["done"] is None


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"parts": [PART | {"widths": [1, 2.5]}]}, r"parts\[0\]\.widths\[1\] is a float, not a int"),
        ({"parts": [PART, {}]}, r"parts\[1\]\.widths is missing"),
        ({"parts": [PART | {"ends": [1]}]}, r"parts\[0\]\.ends has 1 items, expected 2"),
        ({"parts": None}, "parts is a NoneType, not a list"),
        ({"rows": {"a": [1, float("nan")]}}, r"rows\.a\[1\] is nan, expected a finite number"),
        ({"rows": {"a": [1.5, 10**400]}}, r"rows\.a\[1\] is 10+, expected a finite number"),
        ({"rows": {"a": [True]}}, r"rows\.a\[0\] is a bool, not a float"),
        ({"rows": [["a", 1]]}, "rows is a list, not a dict"),
        ({"done": 1}, "done is a int, not a bool"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(changes, wrong):
    with pytest.raises(ValueError, match=f"^{wrong}$"):
        parsed(WHOLE | changes, Whole)


@pytest.mark.parametrize("content", ["[", "[" * 100_000, "\x00", "[]"])
def test_a_file_that_holds_no_such_thing_is_one_line_with_the_cure(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=r"^[^\n]*x\.json[^\n]*; copy it again$"):
        load_json(tmp_path / "x.json", Whole, cure="copy it again")
